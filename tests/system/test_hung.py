"""Processes that run but do nothing, and that nothing wakes: the supervisor starts others in their place."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from tests.system.conftest import System, started

BACK_SECONDS = 120.0  # a command that asks a registry which hangs takes seconds as well


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One of each service."""
    with started(tmp_path_factory.mktemp("hung"), "--transport", "socket") as running:
        yield running


def pid_of(system: System, id: str) -> int | None:
    processes = system.status()["processes"]
    return next((int(one["pid"]) for one in processes if one["id"] == id and one["lease"] == "alive"), None)


async def ask(url: str) -> int:
    body = {"model": "m", "prompt": [5], "max_tokens": 1}
    timeout = aiohttp.ClientTimeout(total=BACK_SECONDS)
    async with (
        aiohttp.ClientSession(url, timeout=timeout) as session,
        session.post("/v1/completions", json=body) as answer,
    ):
        return answer.status


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("id", ["registry-0", "worker-0"])
def test_a_process_that_hangs_is_started_again_and_all_is_served(alone: System, id: str) -> None:
    hang(alone, id)


def hang(system: System, id: str) -> None:
    """Stop a process, wait until another has taken its place, and ask for something."""
    before = pid_of(system, id)
    assert before is not None
    os.kill(before, signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        while not _is_back(system, id, before):
            assert time.monotonic() < stopped + BACK_SECONDS, f"{id} did not come back"
            time.sleep(0.2)
    finally:
        with suppress(ProcessLookupError):
            os.kill(before, signal.SIGCONT)
    print(f"{id} is back after {time.monotonic() - stopped:.1f} s")  # noqa: T201 the figure that a reader wants
    assert asyncio.run(ask(system.url)) == 200


def _is_back(system: System, id: str, before: int) -> bool:
    answer = system.command("status", "--json", check=False)
    return answer.returncode == 0 and pid_of(system, id) not in (None, before)


@pytest.mark.system
@pytest.mark.slow
def test_a_nats_server_that_hangs_is_started_again_and_all_is_served(alone: System) -> None:
    up = alone.process.pid
    children = [int(pid) for pid in Path(f"/proc/{up}/task/{up}/children").read_text().split()]
    [before] = [pid for pid in children if Path(f"/proc/{pid}/comm").read_text().strip().startswith("nats-server")]
    os.kill(before, signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        while Path(f"/proc/{before}/comm").exists() or asyncio.run(ask(alone.url)) != 200:
            assert time.monotonic() < stopped + 2 * BACK_SECONDS, "nothing is served"
            time.sleep(0.2)
    finally:
        with suppress(ProcessLookupError):
            os.kill(before, signal.SIGCONT)
    print(f"all is served again after {time.monotonic() - stopped:.1f} s")  # noqa: T201
