"""An instance of two workers, each a process: it is right, and whoever of them dies, its streams go on elsewhere."""

from collections.abc import Iterator

import pytest

from tests.system.conftest import start, stop
from tests.system.stage import Stage, make_streams

TOKENS = 250


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Three workers, two of which are an instance."""
    streams = make_streams("m", "float32", 8, TOKENS, "qwen2")
    sizes = ("--workers", "3", "--tensor-parallel-size", "2")
    running = start(tmp_path_factory.mktemp("ranks"), "--transport", "socket", *sizes, family="qwen2")
    try:
        yield Stage(running, streams)
    finally:
        assert stop(running) == 0


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 0])
async def test_streams_go_on_when_a_rank_is_killed(stage: Stage, rank: int) -> None:
    stage.rest(serving=2, spare=1)
    (instance,) = stage.status["instances"]
    victim = instance["workers"][rank]
    await stage.under_load(f"rank {rank} killed", stage.pids()[victim])
