"""An instance that drains under load: others go on with its requests, and clients get the same tokens."""

import asyncio
import re
import urllib.request

import pytest

from tests.system.conftest import System
from tests.system.under_load import KILL_AT, SystemUnderLoad, bound, make_streams, scale_in

MOST_DRAINS = 4
MOVED = re.compile(r"^livescale_kv_moves_total\{.*\} (\S+)", re.MULTILINE)


def moved(system: System) -> float:
    """How many requests went from one worker to another while they were decoded."""
    with urllib.request.urlopen(system.url + "/metrics/all", timeout=120) as answer:
        return sum(map(float, MOVED.findall(answer.read().decode())))


async def drain_under_load(system: System, loaded: SystemUnderLoad) -> float:
    """How many requests have moved when one of two instances drained, with the streams of a load on both."""
    await bound(system.url, 2, 2)
    await asyncio.to_thread(loaded.rest, 2, 0)
    loading = asyncio.create_task(loaded.load())
    await asyncio.sleep(KILL_AT)
    await scale_in(system.url)
    loaded.check("drained", await loading)
    await asyncio.to_thread(loaded.rest, 1, 1)
    return await asyncio.to_thread(moved, system)


@pytest.mark.system
async def test_requests_move_to_another_instance_as_theirs_drains(system: System) -> None:
    loaded = SystemUnderLoad(system, await asyncio.to_thread(make_streams, "m", "float32", 9, 300))
    before, drains = await asyncio.to_thread(moved, system), 0
    count = before
    try:
        while count == before:  # on a busy machine requests may end, or wait to begin, before an order to move them
            assert drains < MOST_DRAINS
            drains += 1
            count = await drain_under_load(system, loaded)
        told = await asyncio.to_thread(system.command, "why", "m")
        assert f"others went on with {count - before:.0f} requests" in told.stdout
    finally:
        await bound(system.url, 1, 2)
