import pytest
from msgspec.structs import replace

from livescale.services.registry.model import adapter_spec, check_spec, complete_spec
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.model_spec import ModelSpec, ScalingBounds


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": ""}, "name must"),
        ({"name": "a b"}, "name must"),
        ({"name": "a*"}, "name must"),
        ({"path": ""}, "path must"),
        ({"min_instances": -1}, "min_instances must"),
        ({"max_instances": 0}, "max_instances must"),
        ({"min_instances": 3, "max_instances": 2}, "max_instances must"),
        ({"bounds": ScalingBounds(prefill_lo=0.8)}, "prefill_lo"),
        ({"bounds": ScalingBounds(decode_hi=1.5)}, "decode_hi"),
        ({"bounds": ScalingBounds(kv_lo=0.9)}, "kv_lo"),
        ({"upscale_delay_s": -1.0}, "upscale_delay_s"),
        ({"downscale_delay_s": -0.1}, "downscale_delay_s"),
        ({"downscale_to_zero_delay_s": -0.1}, "downscale_to_zero_delay_s"),
        ({"max_model_len": 0}, "max_model_len"),
    ],
)
def test_a_wrong_field_is_refused_by_name(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(Refusal, match=words) as refused:
        check_spec(ModelSpec(**{"name": "m", "path": "/m", **wrong}))  # type: ignore[arg-type]
    assert refused.value.code == 400


@pytest.mark.parametrize("name", ["llama-3.1-8b", "meta-llama/Llama-2-7b", "M_1"])
def test_names_as_on_the_hub_are_taken(name: str) -> None:
    check_spec(ModelSpec(name=name, path="/m"))


KNOWN = ModelSpec(
    name="m", path="/m", dtype="float32", max_instances=2, layout="panels", bounds=ScalingBounds(prefill_lo=0.1)
)


def test_what_is_not_named_stays() -> None:
    said = ModelSpec(name="m", path="", min_instances=0, bounds=ScalingBounds(prefill_hi=0.9))
    found = complete_spec(said, ["bounds.prefill_hi", "min_instances", "name"], KNOWN)
    assert (found.path, found.dtype, found.min_instances, found.max_instances, found.layout) == (
        *("/m", "float32", 0, 2, "panels"),
    )
    assert found.bounds == ScalingBounds(prefill_lo=0.1, prefill_hi=0.9)


def test_a_spec_without_named_fields_names_all_of_them() -> None:
    said = ModelSpec(name="m", path="/other")
    assert complete_spec(said, None, KNOWN) is said


BASE = ModelSpec(name="m", path="/m", dtype="float32", max_model_len=99, min_instances=2)


def test_an_adapter_has_the_form_of_its_base_and_no_instances() -> None:
    made = adapter_spec(ModelSpec(name="a", path="/a", base="m"), BASE)
    assert (made.base_path, made.dtype, made.max_model_len, made.min_instances) == ("/m", "float32", 99, 0)


def test_a_base_that_takes_no_adapters_is_refused() -> None:
    adapter = ModelSpec(name="a", path="/a", base="m")
    with pytest.raises(Refusal, match="is an adapter itself"):
        adapter_spec(adapter, replace(BASE, base="x"))
