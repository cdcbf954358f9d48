"""The machine is away: every process of a running system is stopped at once, in the middle of a scale, and continues.

No request, scale, role or process is lost. The processes of a machine whose CPU is taken away stand still together, the
bus with them. So do processes that get SIGSTOP one right after the other.
"""

import asyncio
import os
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.system.conftest import started
from tests.system.scaling import WORKERS, BusWatch, watching
from tests.system.under_load import SystemUnderLoad, at_once

RATE = 2e6  # bytes a second
# What no process may report of another: all were away together.
BLAMES = ("state=dead", "state=suspect", "stale_epoch", "Traceback", "starting it again", "request_lost", "rank_lost")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stalls") / "up.log"


@pytest.fixture(scope="module")
def loaded(log: Path) -> Iterator[SystemUnderLoad]:
    """Four workers behind slow links: a model takes two seconds to each."""
    # A process that is stopped for longer than a lease has to wake, and must not be killed for it (test_hung.py tests
    # that).
    options = "--workers", str(WORKERS), "--link-rate", str(RATE), "--kill-hung-s", "30"
    with started(log.parent, *options) as system:
        yield SystemUnderLoad(system, at_once("m", "float32"))


def family_of(pid: int) -> Iterator[int]:
    """This process and all below it."""
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from family_of(int(child))


def blames(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if any(blame in line for blame in BLAMES)]


def epochs_of(watch: BusWatch) -> dict[str, int]:
    return {id: report.epoch for id, report in watch.reports.items()}


async def stall(loaded: SystemUnderLoad, seconds: float) -> None:
    """All processes of the system, the supervisor and the NATS server too, do nothing for so long."""
    pids = list(family_of(loaded.system.process.pid))
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def away_in_mid_scale(
    loaded: SystemUnderLoad, log: Path, told_as: str, stalls: Sequence[tuple[float, float]]
) -> None:
    """Carry a scale through `stalls` of so many seconds, with a rest after each, and check that nothing is lost."""
    async with watching(loaded) as scaling:
        watch = scaling.watch
        await scaling.rest(1)
        loaded.rest(1, WORKERS - 1)
        epochs, pids, told = epochs_of(watch), loaded.pids(), blames(log)
        await scaling.have(3)
        await watch.until(lambda: len(watch.blocks) == 2, "every target has a block")
        [scale] = {watch.plan_of(target).id for target in watch.blocks}
        loading = scaling.load()
        for seconds, rest in stalls:
            await stall(loaded, seconds)
            await asyncio.sleep(rest)
        await watch.until(lambda: watch.records[scale].state in ("done", "failed"), "the scale has ended")
        assert (watch.records[scale].state, watch.records[scale].outcome) == ("done", "2 new instances serve")
        await scaling.check(told_as, loading)
        assert blames(log)[len(told) :] == []
        assert epochs_of(watch) == epochs
        loaded.rest(3, WORKERS - 3)
        assert loaded.pids() == pids


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("seconds", [2.0, 5.0])
async def test_a_machine_that_is_away_in_mid_scale_costs_nobody_anything(
    loaded: SystemUnderLoad, log: Path, seconds: float
) -> None:
    await away_in_mid_scale(loaded, log, f"away for {seconds:g} s", [(seconds, 0.0)])


@pytest.mark.system
@pytest.mark.slow
async def test_a_machine_that_is_away_again_and_again_costs_nobody_anything(loaded: SystemUnderLoad, log: Path) -> None:
    chance = random.Random(1)
    stalls = [(chance.uniform(0.5, 5.0), chance.uniform(0.1, 1.2)) for _ in range(6)]
    await away_in_mid_scale(loaded, log, "away again and again", stalls)


def pid_of(loaded: SystemUnderLoad, name: str, watch: BusWatch) -> int:
    """The pid of a process, by its name or as the one that gives or gets parameters."""
    if name == "nats-server":
        family = family_of(loaded.system.process.pid)
        return next(pid for pid in family if Path(f"/proc/{pid}/comm").read_text().strip() == name)
    by_part = {"source": watch.serving()[:1], "target": list(watch.blocks)}
    return loaded.pids()[by_part.get(name, [name])[0]]


ALONE = ("source", "target", "router-0", "registry-0", "planner-0", "monitor-0", "host-0", "gateway-0", "nats-server")


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize(("name", "seconds"), [*((name, 2.0) for name in ALONE), *((name, 6.0) for name in ALONE[2:6])])
async def test_a_process_that_is_stopped_alone_costs_nobody_a_request_or_a_scale(
    loaded: SystemUnderLoad, log: Path, name: str, seconds: float
) -> None:
    """It is stopped for less than a lease. A process without a part in transfers is stopped for longer, and joins
    again."""
    async with watching(loaded) as scaling:
        watch = scaling.watch
        await scaling.rest(1)
        loaded.rest(1, WORKERS - 1)
        pids, told = loaded.pids(), blames(log)
        await scaling.have(3)
        await watch.until(lambda: len(watch.blocks) == 2, "every target has a block")
        [scale] = {watch.plan_of(target).id for target in watch.blocks}
        pid = pid_of(loaded, name, watch)
        loading = scaling.load()
        try:
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)
        await watch.until(lambda: watch.records[scale].state in ("done", "failed"), "the scale has ended")
        assert (watch.records[scale].state, watch.records[scale].outcome) == ("done", "2 new instances serve")
        await scaling.check(f"{name} away for {seconds:g} s", loading)
        assert not any("Traceback" in line or "starting it again" in line for line in blames(log)[len(told) :])
        loaded.rest(3, WORKERS - 3)
        assert loaded.pids() == pids
