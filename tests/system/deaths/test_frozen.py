"""Processes that are there and do nothing: their place is taken, and when they wake they are refused."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from tests.system.deaths.conftest import HANG_SECONDS
from tests.system.under_load import KILL_AT, PATIENCE_SECONDS, SystemUnderLoad, counted

STOPPED_SECONDS = 10.0
ROUTER_SECONDS = 5.0


Told = Callable[..., bool]


@pytest.fixture
def told(log: Path) -> Told:
    """Whether a line with all these words was logged since the test began."""
    before = len(log.read_text())

    def is_told(*words: str) -> bool:
        return any(all(word in line for word in words) for line in log.read_text()[before:].splitlines())

    return is_told


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"never came: {what}"
        await asyncio.sleep(0.1)


@pytest.mark.system
@pytest.mark.parametrize(
    ("sign", "seconds"),
    [
        pytest.param(signal.SIGSTOP, STOPPED_SECONDS, id="stopped", marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR1, HANG_SECONDS, id="hanging"),
    ],
)
async def test_a_worker_that_does_nothing_is_replaced_and_wakes_as_a_spare(
    rested: SystemUnderLoad, told: Told, sign: signal.Signals, seconds: float
) -> None:
    """Only the event loop of the worker that hangs does nothing; its other threads could."""
    victim = rested.workers("serving")[0]
    pid = rested.pids()[victim]
    loading = asyncio.create_task(rested.load())
    await asyncio.sleep(KILL_AT)
    os.kill(pid, sign)
    waking = asyncio.get_running_loop().call_later(seconds, os.kill, pid, signal.SIGCONT)
    try:
        rested.check(f"{sign.name} of a worker", await loading)
        await until(lambda: told("stale_epoch", f"member={victim}"), "the registry refuses it")
    finally:
        waking.cancel()
        os.kill(pid, signal.SIGCONT)
    await asyncio.to_thread(rested.rest, 2, 1)
    assert victim in rested.workers("spare")
    assert rested.pids()[victim] == pid


def routers(log: Path) -> tuple[str, str]:
    """The one in office, and the one that stands by."""
    [*_, last] = [line for line in log.read_text().splitlines() if "router_takes_office" in line]
    return ("router-0", "router-1") if "id=router-0" in last else ("router-1", "router-0")


async def ask(url: str) -> None:
    """Send a new request, from a client that was not there before."""
    async with aiohttp.ClientSession(url) as session:
        body = {"model": "m", "prompt": [5], "max_tokens": 1}
        async with session.post("/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()


@pytest.mark.system
@pytest.mark.parametrize(
    "sign",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGTERM, id="stopped", marks=pytest.mark.slow),
    ],
)
async def test_a_standby_places_new_requests_when_the_router_is_gone(
    rested: SystemUnderLoad, log: Path, told: Told, sign: signal.Signals
) -> None:
    """Killed, its lease has to end, or it is started again, last in line; stopped as planned it says that it leaves."""
    first, second = routers(log)
    loading = asyncio.create_task(rested.load())
    await asyncio.sleep(KILL_AT)
    rested.kill_process(rested.pids()[first], sign)
    gone = time.monotonic()
    await ask(rested.system.url)
    print(f"{sign.name} of the router: a new request is served after {time.monotonic() - gone:.2f} s")  # noqa: T201
    rested.check(f"{sign.name} of the router", await loading)
    assert told("router_takes_office", f"id={second}")
    assert told("lease_changed", f"member={first}", "it ended, and said so") == (sign is signal.SIGTERM)
    await asyncio.to_thread(rested.rest, 2, 1)


@pytest.mark.system
@pytest.mark.slow
async def test_a_router_that_was_stopped_finds_another_in_office_and_stands_behind_it(
    rested: SystemUnderLoad, log: Path, told: Told
) -> None:
    first, second = routers(log)
    pid, before = rested.pids()[first], await completed(rested.system.url)
    loading = asyncio.create_task(rested.load())
    await asyncio.sleep(KILL_AT)
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.gather(ask(rested.system.url), asyncio.sleep(ROUTER_SECONDS))
    finally:
        os.kill(pid, signal.SIGCONT)
    rested.check("SIGSTOP of the router", await loading)
    await until(lambda: told(f"{first} ", "router_steps_aside"), "the old one steps aside")
    # Its lease ran out; it is told so only at its next heartbeat.
    await until(lambda: told("lease_changed", f"member={first} ", "reason=joined"), "it joins again")
    assert not told("Traceback")
    await asyncio.to_thread(rested.rest, 2, 1)
    assert rested.pids()[first] == pid
    assert routers(log) == (second, first)
    await ask(rested.system.url)
    assert await completed(rested.system.url) == before + len(rested.streams.asks) + 2


async def completed(url: str) -> float:
    """Requests that workers made to their end: none twice."""
    return await counted(url, "vllm:request_success_total{", 'finished_reason="length"')
