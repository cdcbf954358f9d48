from pathlib import Path
from typing import Literal

import msgspec
import pytest
from msgspec import inspect

from livescale.shared.runtime.yaml_file import convert, read_yaml, rename_keys


class Wheel(msgspec.Struct, forbid_unknown_fields=True):
    tyre_size: int
    tyre_kind: Literal["summer", "winter"] | None = None


class Car(msgspec.Struct, forbid_unknown_fields=True):
    top_speed: float
    wheels: tuple[Wheel, ...] = ()
    spare_wheel: Wheel | None = None


def read(text: str, tmp_path: Path) -> object:
    path = tmp_path / "car.yaml"
    path.write_text(text)
    return convert(rename_keys(read_yaml(path), inspect.type_info(Car)), Car)


def test_a_file_is_read_into_its_struct(tmp_path: Path) -> None:
    found = read("top-speed: 90\nwheels: [{tyre-size: 3}, {tyre-size: 4}]\nspare-wheel: {tyre-size: 5}\n", tmp_path)
    assert found == Car(90.0, (Wheel(3), Wheel(4)), Wheel(5))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("top-sped: 1", "unknown key 'top-sped'; did you mean 'top-speed'?"),
        ("top-speed: 1\nwheels: [{tyre-size: 3}, {size: 4}]", "unknown key 'size' in wheels[1]; did you mean"),
        ("top-speed: 1\nspare-wheel: {zzz: 4}", "unknown key 'zzz' in spare-wheel; known are tyre-kind, tyre-size"),
        ("top-speed: 1\nwheels: [{tyre-size: x}]", "wheels[0].tyre-size: Expected `int`, got `str`"),
        ("top-speed: 1\nwheels: [{}]", "wheels[0]: tyre-size is missing"),
        (
            "top-speed: 1\nwheels: [{tyre-size: 3}, {tyre-size: 3, tyre-kind: bald}]",
            "wheels[1].tyre-kind: 'bald' is none of summer, winter",
        ),
        (
            "top-speed: 1\nspare-wheel: {tyre-size: 3, tyre-kind: bald}",
            "spare-wheel.tyre-kind: 'bald' is none of summer, winter",
        ),
        ("wheels: []", "top-speed is missing"),
        ("", "top-speed is missing"),
        ("- 1", "must be a mapping, not list"),
        ("top-speed: [", "not YAML"),
        ("top-speed: 1\ntop-speed: 2", "not YAML: 'top-speed' is given twice"),
        ("top-speed: 1\nwheels: [{tyre-size: 1, tyre-size: 2}]", "'tyre-size' is given twice in"),
        ("? [a]\n: 1\n? [b]\n: 2", "not YAML"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        read(text, tmp_path)
    assert said in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.yaml: No such file or directory"):
        read_yaml(tmp_path / "none.yaml")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "car.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"car\.yaml: not YAML"):
        read_yaml(path)
