"""Clocks and ids: time never goes back, and ids are fresh, for people and for simulations alike."""

import asyncio
import os
import re

import pytest

from livescale.shared.runtime.clock import (
    Clock,
    CountedIds,
    Ids,
    RandomIds,
    RunningClock,
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
