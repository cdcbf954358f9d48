"""The settings of one model of a system: what they refuse, and what they leave to flags."""

import msgspec
import pytest

from livescale.services.supervisor.model_settings import Bounds, ModelSettings
from livescale.shared.messages.model_spec import ScalingBounds


def read(text: str) -> ModelSettings:
    return msgspec.json.decode(text, type=ModelSettings)


def test_a_misspelt_bound_is_refused_where_a_message_would_pass_over_it() -> None:
    with pytest.raises(msgspec.ValidationError, match="prefill_high"):
        read('{"name": "m", "path": "p", "bounds": {"prefill_high": 0.5}}')


def test_bounds_that_are_not_given_are_those_of_the_message() -> None:
    assert msgspec.structs.asdict(Bounds()) == msgspec.structs.asdict(ScalingBounds())


def test_what_is_not_given_is_left_to_the_flag_of_the_same_name() -> None:
    made = read('{"name": "m", "path": "p"}')
    assert (made.dtype, made.min_instances, made.max_instances, made.tensor_parallel_size) == (None,) * 4


@pytest.mark.parametrize("name", ["", "/m", "a b", "-m"])
def test_a_name_that_no_path_of_a_url_can_have_is_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="name"):
        read(f'{{"name": "{name}", "path": "p"}}')
