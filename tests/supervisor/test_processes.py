"""The supervisor, with real processes."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest
import uvloop

from livescale.services.supervisor.policy import RestartPolicy
from livescale.services.supervisor.processes import ChildFailed, Supervisor
from tests.supervisor.children import Log, is_alive, nice_of, python, until

SLEEPER = "import time; print('up'); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)"
WITH_GRANDCHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
print(child.pid)
time.sleep(60)
"""


def quick_policy() -> RestartPolicy:
    return RestartPolicy(most_quick_deaths=3, first_delay_seconds=0.01)


async def test_lines_of_a_process_are_echoed_with_its_name() -> None:
    log = Log()
    async with Supervisor(log) as supervisor:
        supervisor.start(python("talker", f"import sys; print('out'); print('err', file=sys.stderr); {SLEEPER}"))
        await until(lambda: log.of("talker") == ["out", "err", "up"])


async def test_a_killed_process_is_started_again() -> None:
    log = Log()
    async with Supervisor(log, make_policy=quick_policy) as supervisor:
        supervisor.start(python("victim", SLEEPER))
        await until(lambda: "up" in log.of("victim"))
        victim = supervisor.children["victim"]
        first = victim.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: victim.starts == 2 and log.of("victim").count("up") == 2)
        assert victim.pid not in (None, first)
    assert any("killed by SIGKILL" in line for line in log.of("victim"))


def test_the_supervisor_works_on_uvloop_too() -> None:
    uvloop.run(test_a_killed_process_is_started_again())


async def test_a_process_that_dies_at_once_is_given_up_with_its_last_words() -> None:
    async with Supervisor(Log(), make_policy=quick_policy) as supervisor:
        supervisor.start(python("broken", "raise SystemExit('no such arena')"))
        async with asyncio.timeout(60):
            failure = await supervisor.failed()
        assert "no such arena" in str(failure)
        assert "exit status 1" in str(failure)
        with pytest.raises(ChildFailed, match="broken"):
            supervisor.check()


async def test_a_process_that_is_not_essential_is_given_up_alone() -> None:
    log = Log()
    async with Supervisor(log, make_policy=quick_policy) as supervisor:
        supervisor.start(python("other", SLEEPER))
        supervisor.start(python("broken", "raise SystemExit(1)", essential=False))
        await until(lambda: any("does not stay up" in line for line in log.of("broken")))
        supervisor.check("other")
        assert supervisor.children["other"].pid is not None
        with pytest.raises(ChildFailed, match="broken"):
            supervisor.check("broken")


async def test_a_stubborn_process_is_killed_after_its_grace() -> None:
    log = Log()
    async with Supervisor(log, grace_seconds=0.2) as supervisor:
        supervisor.start(python("stubborn", STUBBORN))
        await until(lambda: log.of("stubborn"))
        pid = supervisor.children["stubborn"].pid
        assert pid is not None
        started_at = time.monotonic()
    assert not is_alive(pid)
    assert time.monotonic() - started_at < 50  # it would sleep longer


async def test_what_a_process_started_ends_with_it() -> None:
    log = Log()
    async with Supervisor(log) as supervisor:
        supervisor.start(python("parent", WITH_GRANDCHILD))
        await until(lambda: log.of("parent"))
    grandchild = int(log.of("parent")[0])
    await until(lambda: not is_alive(grandchild))


async def test_what_was_started_last_ends_first() -> None:
    log = Log()
    tells_its_end = """
import signal, sys, time
def end(*_):
    time.sleep(0.05)  # so that others would overtake it if they could
    sys.exit(print("ended"))
signal.signal(signal.SIGTERM, end)
print("up")
time.sleep(60)
"""
    async with Supervisor(log) as supervisor:
        supervisor.start(python("bus", tells_its_end))
        supervisor.start(python("left", tells_its_end), python("right", tells_its_end))
        await until(lambda: [line for _, line in log.lines].count("up") == 3)
    ended = [name for name, line in log.lines if line == "ended"]
    assert sorted(ended[:2]) == ["left", "right"]
    assert ended[2:] == ["bus"]


async def test_a_process_gets_its_environment_and_its_priority() -> None:
    log = Log()
    async with Supervisor(log) as supervisor:
        code = f"import os; print(os.environ['COLOUR'], os.getsid(0) == os.getpid()); {SLEEPER}"
        supervisor.start(python("child", code, env={"COLOUR": "blue"}, nice=7))
        await until(lambda: log.of("child"))
        assert log.of("child")[0] == "blue True"
        pid = supervisor.children["child"].pid
        assert pid is not None
        assert nice_of(pid) == min(nice_of(0) + 7, 19)


async def test_a_line_without_end_is_kept_too() -> None:
    log = Log()
    async with Supervisor(log, make_policy=quick_policy) as supervisor:
        supervisor.start(python("long", "print('x' * 300_000, end=''); raise SystemExit(1)"))
        await until(lambda: any(len(line) == 300_000 for line in log.of("long")))


async def test_a_program_that_is_not_there_is_named() -> None:
    async with Supervisor(Log(), make_policy=quick_policy) as supervisor:
        command = python("absent", "")
        supervisor.start(type(command)("absent", ("/nowhere/program",)))
        async with asyncio.timeout(60):
            assert "/nowhere/program: No such file or directory" in str(await supervisor.failed())


SUPERVISOR = """
import asyncio
from tests.supervisor.children import python
from livescale.services.supervisor.processes import Supervisor

async def main():
    async with Supervisor(lambda name, line: print(line, flush=True)) as supervisor:
        for index in range(3):
            supervisor.start(python(f"child-{index}", "import os, signal, time; "
                "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid()); time.sleep(60)"))
        await asyncio.sleep(60)

asyncio.run(main())
"""


def test_nothing_is_left_when_the_supervisor_itself_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", SUPERVISOR], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pids = [int(supervisor.stdout.readline()) for _ in range(3)]
        assert all(is_alive(pid) for pid in pids)
        supervisor.kill()
    asyncio.run(until(lambda: not any(is_alive(pid) for pid in pids)))


def test_the_supervisor_never_imports_torch() -> None:
    code = "import sys, livescale.services.supervisor.stack; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
