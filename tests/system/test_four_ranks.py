"""An instance of four workers, each a process, in which two ranks share each key head: its tokens are right, and when
one dies, its streams go on with three of them and the fifth."""

from collections.abc import Iterator

import pytest

from tests.checkpoints import other_shape
from tests.system.conftest import started
from tests.system.under_load import SystemUnderLoad, make_streams

TOKENS = 150


@pytest.fixture
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemUnderLoad]:
    """Five workers, four of which are an instance."""
    directory = tmp_path_factory.mktemp("four-ranks")
    made = other_shape("qwen2", directory / "model", num_attention_heads=8)
    streams = make_streams("m", "float32", 6, TOKENS, checkpoint=made, ranks=4)
    sizes = ("--workers", "5", "--tensor-parallel-size", "4", "--kill-hung-s", "0")
    with started(directory, "--transport", "socket", *sizes, checkpoint=made) as running:
        yield SystemUnderLoad(running, streams)


@pytest.mark.system
@pytest.mark.slow
async def test_streams_go_on_when_one_of_four_ranks_is_killed(loaded: SystemUnderLoad) -> None:
    loaded.rest(serving=4, spare=1)
    (instance,) = loaded.status["instances"]
    await loaded.under_load("rank 2 of four killed", loaded.pids()[instance["workers"][2]])
    loaded.rest(serving=4, spare=1)
