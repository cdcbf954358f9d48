"""The only worker of a model is killed beside streams of every kind, and no client can tell."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.checkpoints import tiny_checkpoint
from tests.system.deaths.test_deaths import RESUMED
from tests.system.surface import ASKS, REQUESTS, ask_all
from tests.system.under_load import SystemUnderLoad, counted, register, remove

PATIENCE_SECONDS = 120.0
ONLY = "only"


@pytest.fixture
async def victim(rested: SystemUnderLoad) -> AsyncIterator[int]:
    """The process of the only worker of another model."""
    one = {"min_instances": 1, "max_instances": 1}
    url = rested.system.url
    await register(url, {"name": ONLY, "path": str(tiny_checkpoint("llama")), "dtype": "float32", **one})
    await asyncio.to_thread(rested.rest, 3, 0)
    yield next(int(worker["pid"]) for worker in rested.status["workers"] if worker["model"] == ONLY)
    await remove(url, ONLY)


@pytest.mark.system
async def test_streams_of_every_kind_tell_the_same_when_their_worker_is_killed(
    loaded: SystemUnderLoad, victim: int
) -> None:
    """Choices, penalties, biases, log-probabilities, forms and tools, of chats, completions, responses and messages."""
    url = loaded.system.url
    expected = await ask_all(url, ONLY)
    before, begun = await counted(url, RESUMED), asyncio.Barrier(len(ASKS) + 1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        asking = asyncio.create_task(ask_all(url, ONLY, begun))
        await begun.wait()
        loaded.kill_process(victim)
        told = await asking
    for name in ASKS:
        assert told[name] == expected[name], name
    assert await counted(url, RESUMED) > before + REQUESTS // 2
