"""An instance that drains under load: others go on with its requests, and clients get the same tokens."""

import asyncio
import json
import re
import urllib.request
from pathlib import Path

import pytest

from tests.system.conftest import System, start, stop
from tests.system.under_load import KILL_AT, SystemUnderLoad, make_streams

OPTIONS = ("--min-instances", "1", "--max-instances", "2", "--scaling", "advisory")  # only commands scale
MOST_DRAINS = 4
MOVED = re.compile(r"^livescale_kv_moves_total\{.*\} (\S+)", re.MULTILINE)


def moved(system: System) -> float:
    """How many requests went from one worker to another while they were decoded."""
    with urllib.request.urlopen(system.url + "/metrics/all", timeout=20) as answer:
        return sum(map(float, MOVED.findall(answer.read().decode())))


def scale(system: System, instances: int) -> None:
    """Ask for so many instances, without the time that a command takes to start."""
    body = json.dumps({"model": "m", "instances": instances}).encode()
    request = urllib.request.Request(system.url + "/admin/v1/scale", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status in (200, 202)


async def drain_under_load(system: System, loaded: SystemUnderLoad) -> float:
    """How many requests moved as one of two instances drained, with the streams of a load on both."""
    await asyncio.to_thread(system.command, "scale", "m", "--instances", "2", "--wait")
    await asyncio.to_thread(loaded.rest, 2, 0)
    loading = asyncio.create_task(loaded.load())
    await asyncio.sleep(KILL_AT)
    await asyncio.to_thread(scale, system, 1)
    loaded.check("drained", await loading)
    await asyncio.to_thread(loaded.rest, 1, 1)
    return await asyncio.to_thread(moved, system)


@pytest.mark.system
async def test_requests_move_to_another_instance_as_theirs_drains(tmp_path: Path) -> None:
    system = start(tmp_path, *OPTIONS)
    try:
        streams = await asyncio.to_thread(make_streams, "m", "float32", 30, 300)
        loaded = SystemUnderLoad(system, streams)
        drains, count = 0, 0.0
        while not count:  # on a busy machine requests may end, or wait to begin, before an order to move them comes
            assert drains < MOST_DRAINS
            drains += 1
            count = await drain_under_load(system, loaded)
        told = await asyncio.to_thread(system.command, "why", "m")
        assert f"others went on with {count:.0f} requests" in told.stdout
    finally:
        assert stop(system) == 0
