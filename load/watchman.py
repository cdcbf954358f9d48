"""Keeps an eye on a running system's processes, and on whether anything runs at all."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from livescale.load.incidents import TICK_SECONDS, Incident, Life, Lives, Ticks, Times
from livescale.services.supervisor.processes import Child
from livescale.shared.runtime.clock import Clock


@asynccontextmanager
async def watching_lives(
    children: Mapping[str, Child], clock: Clock, note: Callable[[str], None]
) -> AsyncIterator[list[Incident]]:
    """Inside, the list fills with what befalls them, and `note` gets a line for each."""
    incidents: list[Incident] = []
    watching = asyncio.create_task(watch(children, clock, note, incidents), name="watchman")
    try:
        yield incidents
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def watch(
    children: Mapping[str, Child], clock: Clock, note: Callable[[str], None], incidents: list[Incident]
) -> None:
    ticks, lives = Ticks(read_times(clock)), Lives(read_lives(children))
    while True:
        await asyncio.sleep(TICK_SECONDS)
        times = read_times(clock)
        stall = ticks.on_tick(times)
        for incident in [*([] if stall is None else [stall]), *lives.on_look(read_lives(children), times.wall)]:
            incidents.append(incident)
            note(incident.line)


def read_times(clock: Clock) -> Times:
    return Times(clock.now(), clock.wall())


def read_lives(children: Mapping[str, Child]) -> dict[str, Life]:
    return {name: Life(child.pid, child.starts) for name, child in children.items()}
