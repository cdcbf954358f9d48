"""Clocks and ids: time never goes back, and ids are fresh, for people and for simulations alike."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.runtime.clock import (
    MOST_SECONDS,
    TICK_SECONDS,
    Clock,
    CountedIds,
    Ids,
    RandomIds,
    RunningClock,
    RunningLoop,
    RunningTime,
    SystemClock,
    own_pid,
    seconds_away,
)
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.virtual_clock import VirtualClock
from tests.clocks import LoopClock


async def test_every_clock_goes_forward_and_knows_the_time_of_day() -> None:
    system = SystemClock()
    for clock in (system, RunningClock()):
        assert isinstance(clock.now(), float)
        before = clock.now()
        await asyncio.sleep(0)
        assert clock.now() >= before
        assert clock.wall() == pytest.approx(system.wall(), abs=60)
        assert clock.away == 0.0


def test_virtual_time_is_the_loops_and_its_wall_begins_at_the_epoch() -> None:
    async def main() -> None:
        loop_clock, running = LoopClock(epoch=1_000_000.0), VirtualClock(epoch=1_000_000.0)
        clocks: tuple[Clock, ...] = (loop_clock, running, RunningClock())
        begun = [clock.now() for clock in clocks]
        await asyncio.sleep(3_600)
        assert [clock.now() - at for clock, at in zip(clocks, begun, strict=True)] == [3_600] * 3
        assert loop_clock.wall() == running.wall() == 1_000_000.0 + loop_clock.now()

    virtual_time.run(main())


async def test_a_process_that_is_not_simulated_has_its_own_pid_and_was_never_away() -> None:
    assert own_pid() == os.getpid()
    assert seconds_away(asyncio.get_running_loop()) == 0.0


@pytest.mark.parametrize("ids", [RandomIds(), CountedIds()])
def test_ids_are_fresh_and_fit_into_subjects(ids: Ids) -> None:
    made = [ids.new(prefix) for prefix in ("req", "scale") for _ in range(50)]
    assert len(set(made)) == len(made)
    assert all(re.fullmatch("[a-z0-9-]+", id) for id in made)
    assert [id.partition("-")[0] for id in made] == ["req"] * 50 + ["scale"] * 50
    assert len({ids.secret() for _ in range(50)}) == 50


def test_counted_ids_are_the_same_in_every_run_and_secrets_of_others_are_long() -> None:
    first, second = CountedIds(), CountedIds()
    assert [first.new("req"), first.new("req"), first.secret()] == [
        second.new("req"),
        second.new("req"),
        second.secret(),
    ]
    assert len(RandomIds().secret()) == 32


STOPPED_SECONDS = 1.5


def run(main: Coroutine[None, None, None]) -> None:
    uvloop.run(main, loop_factory=RunningLoop)


async def wait_for_a_word() -> None:
    """Wait for the word that wakes this process; the deadline is shorter than its sleep."""
    clock, heard = RunningClock(), asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), heard.set)
    print("waiting", flush=True)  # noqa: T201 for the test
    async with asyncio.timeout(1.0):
        await heard.wait()
    assert clock.away > STOPPED_SECONDS / 2


def until_asleep(pid: int) -> None:
    """Return once this process waits, which takes a while where it gets no core."""
    deadline = time.monotonic() + 30
    asleep = 0
    while asleep < 4:  # looks in a row
        assert time.monotonic() < deadline
        time.sleep(0.05)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        asleep = asleep + 1 if state == "S" else 0


def test_what_came_while_a_process_was_stopped_is_read_before_its_deadline_passes() -> None:
    words = (sys.executable, "-c", f"from {__name__} import *; run(wait_for_a_word())")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdout.readline()
            until_asleep(process.pid)
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS)  # of real time: a real process is stopped
            process.stdin.write("word\n")
            process.stdin.flush()
        finally:
            os.kill(process.pid, signal.SIGCONT)
        assert process.wait(60) == 0


def test_a_loop_that_is_held_up_has_not_listened_either() -> None:
    async def main() -> None:
        heard = asyncio.Event()
        loop, clock = asyncio.get_running_loop(), RunningClock()
        by_machine, began = time.monotonic(), clock.now()
        loop.call_soon(time.sleep, 1.0)
        loop.call_later(0.4, heard.set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.35):
                await heard.wait()
        ended = clock.now()  # between the two looks at the machine's clock: a pause between looks is no sleep
        slept = time.monotonic() - by_machine - (ended - began)
        assert 0.5 < clock.away <= slept + 0.05

    run(main())


def test_timers_fire_in_time_and_cancelled_ones_never() -> None:
    async def main() -> None:
        loop, fired = asyncio.get_running_loop(), list[str]()
        began = loop.time()
        loop.call_later(0.05, fired.append, "later")
        loop.call_at(began + 0.02, fired.append, "at")
        loop.call_later(0.01, fired.append, "never").cancel()
        await asyncio.sleep(0.1)  # of real time: real timers are tested
        assert fired == ["at", "later"]
        assert loop.time() - began > 0.09

    run(main())


def ticking(running: RunningTime, start: float, end: float) -> None:
    ticks = round((end - start) / TICK_SECONDS)
    for number in range(1, ticks + 1):
        running.tick(start + number * TICK_SECONDS)


def test_awake_it_is_the_machines_time() -> None:
    running = RunningTime(10.0)
    ticking(running, 10.0, 20.0)
    assert (running.at(20.05), running.away) == (20.05, 0.0)


@pytest.mark.parametrize("seconds", [0.5, 2.0, 5.0, 3600.0])
def test_a_sleep_counts_for_no_more_than_a_late_tick(seconds: float) -> None:
    running = RunningTime(0.0)
    ticking(running, 0.0, 1.0)
    woken = 1.0 + seconds
    assert running.at(woken) == 1.0 + MOST_SECONDS  # before its tick, too
    assert running.tick(woken) == pytest.approx(seconds - MOST_SECONDS)
    assert running.at(woken) == pytest.approx(1.0 + MOST_SECONDS)
    ticking(running, woken, woken + 1.0)
    assert running.at(woken + 1.0) == pytest.approx(2.0 + MOST_SECONDS)
    assert running.away == pytest.approx(seconds - MOST_SECONDS)


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.booleans())))
def test_it_never_goes_back_nor_faster_than_the_clock(steps: list[tuple[float, bool]]) -> None:
    running, clock, last = RunningTime(0.0), 0.0, 0.0
    for seconds, ticks in steps:
        clock += seconds
        if ticks:
            running.tick(clock)
        now = running.at(clock)
        assert last - 1e-9 <= now <= last + seconds + 1e-9
        last = now
