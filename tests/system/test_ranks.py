"""An instance of two workers, each a process: its tokens are right, and when either dies, its streams go on
elsewhere."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from tests.system.conftest import started
from tests.system.structured import COUNT, structured_answers
from tests.system.under_load import KILL_AT, SystemUnderLoad, make_streams

TOKENS = 250
STOPPED_SECONDS = 15.0  # longer than a rank waits for another


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemUnderLoad]:
    """Three workers, two of which are an instance."""
    streams = make_streams("m", "float32", 8, TOKENS, "qwen2", ranks=2)
    sizes = ("--workers", "3", "--tensor-parallel-size", "2", "--kill-hung-s", "0")
    with started(tmp_path_factory.mktemp("ranks"), "--transport", "socket", *sizes, family="qwen2") as running:
        yield SystemUnderLoad(running, streams)


@pytest.fixture
def victim(loaded: SystemUnderLoad, rank: int) -> int:
    """The process of that rank of the instance, which serves."""
    loaded.rest(serving=2, spare=1)
    (instance,) = loaded.status["instances"]
    return loaded.pids()[instance["workers"][rank]]


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 0])
async def test_streams_go_on_when_a_rank_is_killed(loaded: SystemUnderLoad, rank: int, victim: int) -> None:
    await loaded.under_load(f"rank {rank} killed", victim)


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 0])
async def test_streams_go_on_when_a_rank_does_nothing(loaded: SystemUnderLoad, rank: int, victim: int) -> None:
    loading = asyncio.create_task(loaded.load())
    await asyncio.sleep(KILL_AT)
    os.kill(victim, signal.SIGSTOP)
    waking = asyncio.get_running_loop().call_later(STOPPED_SECONDS, os.kill, victim, signal.SIGCONT)
    try:
        loaded.check(f"rank {rank} stopped", await loading)
    finally:
        waking.cancel()
        os.kill(victim, signal.SIGCONT)
    await asyncio.to_thread(loaded.rest, 2, 1)


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("rank", [0])
async def test_answers_by_a_schema_keep_their_tokens_when_a_rank_is_killed(
    loaded: SystemUnderLoad, victim: int
) -> None:
    url, begun = loaded.system.url, asyncio.Barrier(COUNT + 1)
    expected = await structured_answers(url)
    asking = asyncio.create_task(structured_answers(url, begun=begun))
    await begun.wait()
    loaded.kill_process(victim)
    assert await asking == expected
    await asyncio.to_thread(loaded.rest, 2, 1)
