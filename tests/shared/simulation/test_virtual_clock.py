"""The clock of simulated processes, before and after one of them has slept."""

import asyncio

from livescale.shared.runtime.clock import MOST_SECONDS
from livescale.shared.simulation.processes import Process
from livescale.shared.simulation.virtual_clock import VirtualClock
from livescale.shared.simulation.virtual_time import run

EPOCH = 1000.0


def test_only_the_process_that_slept_is_behind_and_the_wall_shows_the_same_to_all() -> None:
    async def main() -> tuple[list[tuple[float, float, float]], list[tuple[float, float, float]]]:
        clock, sleeper, awake = VirtualClock(EPOCH), Process(), Process()

        def look(process: Process) -> tuple[float, float, float]:
            return process.context().run(lambda: (clock.now(), clock.away, clock.wall()))

        await asyncio.sleep(2.0)
        before = [look(sleeper), look(awake)]
        sleeper.stop()
        await asyncio.sleep(10.0)
        sleeper.go_on()
        return before, [look(sleeper), look(awake)]

    before, after = run(main())
    slept = 10.0 - MOST_SECONDS
    assert before == [(2.0, 0.0, EPOCH + 2.0)] * 2
    assert after == [(12.0 - slept, slept, EPOCH + 12.0), (12.0, 0.0, EPOCH + 12.0)]
