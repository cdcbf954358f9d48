"""What follows from an operator's words of a model."""

import pytest
from msgspec.structs import replace

from livescale.shared.messages.model_spec import ModelSpec

SPEC = ModelSpec(name="m", path="/m")


def test_a_model_hands_requests_over_as_it_says_itself_or_else_as_the_system_does() -> None:
    assert [SPEC.disaggregation_in(system) for system in ("off", "on", "auto")] == ["off", "on", "auto"]
    assert replace(SPEC, disaggregation="on").disaggregation_in("off") == "on"


def test_instances_of_several_ranks_do_everything() -> None:
    assert replace(SPEC, disaggregation="on", tensor_parallel_size=2).disaggregation_in("on") == "off"


@pytest.mark.parametrize(
    "change",
    [{"dtype": "float32"}, {"tensor_parallel_size": 2}, {"layout": "panels"}, {"kv_cache_dtype": "fp8"}],
    ids=str,
)
def test_the_form_changes_with_whatever_changes_the_bytes(change: dict[str, str | int]) -> None:
    assert replace(SPEC, **change).form != SPEC.form


def test_how_a_model_is_scaled_does_not_change_its_form() -> None:
    assert replace(SPEC, max_instances=3, priority=5, upscale_delay_s=1.0).form == SPEC.form
