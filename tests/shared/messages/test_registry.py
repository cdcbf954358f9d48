from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry


def test_each_rank_has_its_part_of_the_parameters_and_the_largest_is_named() -> None:
    spec = ModelSpec(name="m", path="/m", tensor_parallel_size=4)
    assert ModelEntry(spec=spec, state="ready", size_bytes=10).rank_bytes == 3
