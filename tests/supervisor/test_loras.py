"""The adapters that a system starts with: each has a base and files, and a name of its own."""

from pathlib import Path

import pytest

from livescale.services.supervisor.checks import BadSettings
from livescale.services.supervisor.loras import adapter_specs, unread_adapters
from livescale.services.supervisor.model_settings import LoraSettings, ModelSettings
from livescale.services.supervisor.settings import StackSettings
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry, Snapshot
from livescale.shared.model.declaration.adapter import ADAPTER_CONFIG

ONE = (ModelSettings(name="m", path="/m"),)
TWO = (*ONE, ModelSettings(name="n", path="/n"))


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / ADAPTER_CONFIG).write_text("{}")
    return str(tmp_path)


def specs(models: tuple[ModelSettings, ...], *loras: LoraSettings) -> list[ModelSpec]:
    return adapter_specs(StackSettings(models=models, loras=loras))


def test_an_adapter_is_of_the_only_model_or_of_the_one_it_names(directory: str) -> None:
    assert [one.base for one in specs(ONE, LoraSettings(name="a", path=directory))] == ["m"]
    assert [one.base for one in specs(TWO, LoraSettings(name="a", path=directory, base="n"))] == ["n"]


def test_what_cannot_be_served_is_refused_by_name(directory: str) -> None:
    a = LoraSettings(name="a", path=directory)
    for models, loras, told in (
        (TWO, [a], "name its base"),
        (ONE, [LoraSettings(name="a", path=directory, base="x")], "name its base"),
        (ONE, [LoraSettings(name="a", path=directory + "/none")], "adapter_config.json"),
        (ONE, [LoraSettings(name="m", path=directory)], "has the name of another"),
        (ONE, [a, a], "has the name of another"),
    ):
        with pytest.raises(BadSettings, match=told):
            specs(models, *loras)


def test_adapters_are_waited_for_until_a_host_has_them(directory: str) -> None:
    adapters = specs(ONE, LoraSettings(name="a", path=directory))
    reading = ModelEntry(spec=adapters[0], state="reading")
    assert unread_adapters(Snapshot(models=[reading]), adapters) == ["a"]
    assert unread_adapters(Snapshot(models=[ModelEntry(spec=adapters[0], state="ready")]), adapters) == []
