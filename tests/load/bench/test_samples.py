"""Samples that a stall of the machine fell into are taken again, and counted as such."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from livescale.load.bench.record import RecordPrinter, measured
from livescale.load.bench.samples import (
    TRIES,
    BenchFailed,
    CoreTicks,
    Counts,
    Disturbed,
    Samples,
    StallWatch,
    together,
)
from livescale.load.incidents import ClockTimes, RunIncident
from livescale.shared.bus.contract import CallTimeout
from tests.load.bench.bench_output import records_in

STALL = RunIncident(0.0, "stall", "the machine stood still for 2.1 s", 2.1)


class Scripted(StallWatch):
    """A watch that finds the stalls that it is told to, and looks at no clock."""

    def __init__(self, found: Sequence[RunIncident]) -> None:
        self.found = list(found)

    def __enter__(self) -> "Scripted":
        return self

    def __exit__(self, *_: object) -> None: ...


def scripted(*stalls: bool) -> Callable[[], StallWatch]:
    """A watch whose stalls fall into these tries, and into none after them."""
    script: Iterator[bool] = iter(stalls)
    return lambda: Scripted([STALL] if next(script, False) else [])


class Shaky:
    """A sample that fails as often as it is told, each time in a way of transports or of the bus."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.renewed = 0

    def sample(self) -> str:
        if self.failures:
            raise self.failures.pop(0)
        return "sample"

    def renew(self) -> None:
        self.renewed += 1

    async def sample_async(self) -> str:
        return self.sample()

    async def renew_async(self) -> None:
        self.renew()


def test_a_sample_with_a_stall_is_taken_again_and_what_it_may_have_broken_is_made_anew() -> None:
    told: list[str] = []
    samples, shaky = Samples(told.append, scripted(True, True)), Shaky(BenchFailed("process 1: given up"))
    assert samples.take(shaky.sample, shaky.renew) == "sample"
    assert samples.counts() == Counts(taken=1, again=2)
    assert shaky.renewed == 2
    assert told[0] == "the machine stood still for 2.1 s; process 1: given up: this sample is taken again"
    assert told[1] == "the machine stood still for 2.1 s: this sample is taken again"


def test_the_same_where_samples_are_taken_on_a_loop() -> None:
    samples, shaky = Samples(print, scripted(True, False)), Shaky(CallTimeout("no answer"))
    assert asyncio.run(samples.take_async(shaky.sample_async, shaky.renew_async)) == "sample"
    assert (samples.counts(), shaky.renewed) == (Counts(taken=1, again=1), 1)


def test_so_is_a_sample_that_was_disturbed_otherwise() -> None:
    told: list[str] = []
    samples, shaky = Samples(told.append, scripted()), Shaky(Disturbed("worker-1 was lost (silent for 2.5 s)"))
    assert samples.take(shaky.sample, shaky.renew) == "sample"
    assert (samples.counts(), shaky.renewed) == (Counts(taken=1, again=1), 1)
    assert told == ["worker-1 was lost (silent for 2.5 s): this sample is taken again"]


def test_what_fails_without_a_stall_fails() -> None:
    samples, shaky = Samples(print, scripted()), Shaky(BenchFailed("other bytes than were sent"))
    with pytest.raises(BenchFailed, match="other bytes"):
        samples.take(shaky.sample, shaky.renew)
    assert (samples.counts(), shaky.renewed) == (Counts(taken=0, again=0), 0)


def test_a_sample_that_never_gets_through_makes_the_run_void() -> None:
    with pytest.raises(BenchFailed, match="the run is void: 4 tries of one sample were disturbed"):
        Samples(print, scripted(*[True] * TRIES)).take(lambda: None, lambda: None)


@pytest.mark.parametrize(("taken", "again", "void"), [(9, 0, False), (9, 3, False), (9, 4, True), (1, 1, True)])
def test_a_third_may_be_taken_again_and_no_more(taken: int, again: int, void: bool) -> None:
    counts = Counts(taken, again)
    assert counts.is_void is void
    assert len(counts.lines()) == (again > 0) + void


def test_a_void_run_says_so_and_keeps_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    printer = RecordPrinter("b")
    printer.samples.taken, printer.samples.again = 2, 1
    printer.emit(measured("b", "c", 1.0, "s", 1.0, at_most=1.0))
    assert not printer.finish()
    assert "The run is void" in capsys.readouterr().err


def test_a_stall_of_this_process_is_seen() -> None:
    thaw = f"sleep 0.2; kill -STOP {os.getpid()}; sleep 1.2; kill -CONT {os.getpid()}"
    with StallWatch() as watch, subprocess.Popen(["sh", "-c", thaw]):
        time.sleep(0.4)  # the shell stops this process meanwhile
    assert max(stall.seconds for stall in watch.found) > 0.5


def stood(*lengths: float) -> RunIncident | None:
    """What a core is said to have done whose ticks came after so many seconds each."""
    now = ClockTimes(10.0, 1_000.0)
    ticks = CoreTicks(1, now)
    for seconds in lengths:
        now = ClockTimes(now.steady + seconds, now.wall + seconds)
        ticks.on_tick(now)
    return ticks.stall()


def test_a_long_pause_of_a_core_spoils_a_sample_and_so_do_many_short_ones() -> None:
    assert stood(*[0.12] * 100) is None  # late, as on any busy machine
    assert stood(*[0.1] * 9, 0.55) is None
    assert stood(*[0.3] * 3, *[0.1] * 200) is None  # 0.6 s of 20.9
    long, short = stood(0.1, 2.2, 0.1), stood(*[0.3] * 5)
    assert long is not None
    assert short is not None
    assert (long.line, short.line) == ("core 1 stood still for 2.1 of 2.4 s", "core 1 stood still for 1.0 of 1.5 s")


def test_a_halted_machine_is_seen_by_the_wall_clock() -> None:
    ticks = CoreTicks(0, ClockTimes(10.0, 1_000.0))
    ticks.on_tick(ClockTimes(10.1, 1_003.1))
    stall = ticks.stall()
    assert stall is not None
    assert stall.seconds == pytest.approx(3.0)


def test_a_stall_of_all_cores_is_one_of_the_machine() -> None:
    first, second = (RunIncident(0.0, "stall", f"core {core} stood still", 2.0 + core) for core in range(2))
    assert together([None, None]) == []
    assert together([first, None]) == [first]
    assert [stall.line for stall in together([first, second])] == ["the machine stood still for 2.0 s"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no other core")
def test_a_stall_of_one_core_is_seen_while_the_others_run() -> None:
    core = min(os.sched_getaffinity(0))
    hog = (
        "import os, time\n"
        f"os.sched_setaffinity(0, {{{core}}})\n"
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))\n"
        "end = time.monotonic() + 0.8\n"
        "while time.monotonic() < end: pass\n"
    )
    with StallWatch() as watch:
        hogging = subprocess.run(
            [sys.executable, "-I", "-S", "-c", hog], stderr=subprocess.PIPE, text=True, check=False
        )
    if "PermissionError" in hogging.stderr:
        pytest.skip("this user may not hold a core")
    # On a busy machine the others may have stood still as well, and this one for longer.
    stall = watch._ticks[core].stall()
    assert stall is not None
    assert stall.seconds > 0.5


@pytest.mark.system
@pytest.mark.slow
def test_a_bench_carries_on_over_a_stall_of_everything() -> None:
    flags = ["--megabytes", "34", "--rate", "10", "--case", "chains", "--receivers", "2"]
    command = [sys.executable, "-m", "livescale.services.cli.main", "bench", "transfer", *flags]
    bench = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert bench.stderr is not None
    lines = iter(bench.stderr.readline, "")
    assert any("chain of 2" in line for line in lines)
    time.sleep(1.0)  # until it sends
    os.killpg(bench.pid, signal.SIGSTOP)
    time.sleep(3.0)  # the stall
    os.killpg(bench.pid, signal.SIGCONT)
    out, err = bench.communicate(timeout=120)
    assert "this sample is taken again" in err
    [record] = records_in(out, out + err)
    assert record["case"] == "chain of 2"
    assert re.search(r"still during \d+ samples, which were taken again; 3 count", err)
    assert bench.returncode == (0 if record["ok"] and "The run is void" not in err else 1)
