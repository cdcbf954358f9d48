"""Processes that are forked from one that has imported their code, with real processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop

from livescale.services.supervisor.forks import ForkServers
from livescale.services.supervisor.policy import RestartPolicy
from livescale.services.supervisor.processes import ProcessCommand, RunningProcess, Supervisor, end_group
from tests.supervisor.children import Log, is_alive, until

MODULE = "tests.supervisor.forked"
SUPERVISOR = """
import asyncio
from livescale.services.supervisor.forks import ForkServers
from tests.supervisor.test_forks import forked
async def main():
    async with ForkServers(print) as forks:
        process = await forks.spawn(forked("one"))
        print(process.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


def forked(name: str, *words: str, imports: tuple[str, ...] = (MODULE,), nice: int = 0) -> ProcessCommand:
    return ProcessCommand(name, (sys.executable, "-m", MODULE, *words), {"KEY": name}, nice=nice, imports=imports)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def forks(log: Log) -> AsyncIterator[ForkServers]:
    async with ForkServers(log) as servers:
        yield servers


async def tell(process: RunningProcess) -> dict[str, Any]:
    """What a process tells of itself; then it is ended."""
    assert process.stdout is not None
    told: dict[str, Any] = json.loads(await process.stdout.readline())
    await end_group(process, 0.0)
    assert process.returncode in (-signal.SIGTERM, -signal.SIGKILL)
    assert await process.stdout.read() == b""
    return told


async def test_a_forked_process_is_like_one_that_was_started_by_itself(forks: ForkServers) -> None:
    told = [await tell(await forks.spawn(forked("x", "a b", "c", nice=3, imports=each))) for each in ((MODULE,), ())]
    pids = [each.pop("pid") for each in told]
    assert [each.pop("imported") for each in told] == [True, False]
    assert [each.pop("session") for each in told] == pids
    assert told[0] == told[1]
    assert told[0] == {
        "words": ["a b", "c"],
        "parent": os.getpid(),
        "nice": min(os.nice(0) + 3, 19),
        "key": "x",
        "listed": [sys.executable, "-m", MODULE, "a b", "c"],
    }


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [(("ends", "0"), 0, ""), (("ends", "7"), 7, ""), (("says", "why"), 1, "why\n"), (("fails",), 1, "on purpose\n")],
)
async def test_it_ends_as_any_process_does(forks: ForkServers, words: tuple[str, ...], code: int, said: str) -> None:
    process = await forks.spawn(forked("x", *words))
    assert process.stdout is not None
    output = (await process.stdout.read()).decode()
    assert await process.wait() == code
    assert output.endswith(said)
    assert bool(output) == bool(said)


async def start_two_and_kill_one(log: Log) -> None:
    policy = lambda: RestartPolicy(first_delay_seconds=0.01)  # noqa: E731
    async with ForkServers(log) as forks, Supervisor(log, make_policy=policy, spawn=forks.spawn) as supervisor:
        supervisor.start(forked("one"), forked("two"))
        await until(lambda: log.of("one") and log.of("two"))
        first = supervisor.children["one"].pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: sum("pid" in line for line in log.of("one")) == 2)
        second = supervisor.children["one"].pid
    assert any("killed by SIGKILL" in line for line in log.of("one"))
    assert second not in (None, first)
    assert not is_alive(second)
    assert all(json.loads(line)["imported"] for _, line in log.lines if "pid" in line)


async def test_one_that_is_killed_is_started_again(log: Log) -> None:
    await start_two_and_kill_one(log)


def test_uvloop_does_it_too(log: Log) -> None:
    uvloop.run(start_two_and_kill_one(log))


async def test_processes_outlive_their_fork_server_and_the_next_gets_another(forks: ForkServers, log: Log) -> None:
    before = children()
    process = await forks.spawn(forked("one"))
    [server] = {int(pid) for pid in children() - before} - {process.pid}
    os.kill(server, signal.SIGKILL)
    await until(lambda: not is_alive(server))
    following = await forks.spawn(forked("two"))
    assert (await tell(following))["imported"] or "started by itself" in log.of("two")[0]
    assert (await tell(await forks.spawn(forked("three"))))["imported"]
    assert is_alive(process.pid)
    await tell(process)


@pytest.mark.parametrize("module", ["tests.supervisor.nothing", "tests.supervisor.forked_threads"])
async def test_what_cannot_be_forked_is_started_by_itself(forks: ForkServers, log: Log, module: str) -> None:
    for name in ("one", "two"):
        assert not (await tell(await forks.spawn(forked(name, imports=(MODULE, module)))))["imported"]
    assert [name for name, line in log.lines if "started by itself" in line] == ["one"]


async def test_one_whose_start_is_cancelled_leaves_nothing(forks: ForkServers) -> None:
    before = children()
    starting = asyncio.create_task(forks.spawn(forked("one")))
    await until(lambda: children() - before)  # the server, which imports now
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert len(children() - before) == 1


def test_nothing_outlives_a_supervisor_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        assert is_alive(pid)
        supervisor.kill()
    asyncio.run(until(lambda: not is_alive(pid)))


def children() -> set[str]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(file.read().split())
