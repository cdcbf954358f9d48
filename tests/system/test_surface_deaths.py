"""The only worker of a model is killed beside streams of every kind, and no client can tell."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.system.conftest import start, stop
from tests.system.surface import ASKS, REQUESTS, ask_all
from tests.system.test_deaths import RESUMED, counted
from tests.system.under_load import ExpectedStreams, SystemUnderLoad

PATIENCE_SECONDS = 120.0


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemUnderLoad]:
    """A model at one of two workers."""
    running = start(tmp_path_factory.mktemp("surface"), "--max-instances", "1")
    try:
        yield SystemUnderLoad(running, ExpectedStreams("m", [], {}))
    finally:
        assert stop(running) == 0


@pytest.mark.system
async def test_streams_of_every_kind_tell_the_same_when_their_worker_is_killed(loaded: SystemUnderLoad) -> None:
    """Choices, penalties, biases, log-probabilities, forms and tools, of chats, completions, responses and messages."""
    url = loaded.system.url
    await asyncio.to_thread(loaded.rest, 1, 1)
    expected = await ask_all(url, "m")
    before, begun = await counted(url, RESUMED), asyncio.Barrier(len(ASKS) + 1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        asking = asyncio.create_task(ask_all(url, "m", begun))
        await begun.wait()
        loaded.kill(loaded.workers("serving")[0])
        told = await asking
    for name in ASKS:
        assert told[name] == expected[name], name
    assert await counted(url, RESUMED) > before + REQUESTS // 2
