"""Plays a scenario under virtual time: starts its system, sends its requests, and gathers what came of them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from livescale.load.records import Ask
from livescale.load.scenario.figures import Seen, summarise, summarise_run
from livescale.load.scenario.requests import Due, draw_requests, make_ask
from livescale.load.scenario.result import (
    AnsweredQuestion,
    Question,
    SimulationResult,
    put,
)
from livescale.load.scenario.system import ScenarioSystem
from livescale.load.simulate.client import fetch
from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.event_log import LogFile, LogSink
from livescale.load.simulate.faults import ClusterFaultInjector
from livescale.load.simulate.start import quiet, rare_collections, register, until, workers_in
from livescale.load.simulate.usage import UsageWatch
from livescale.shared.simulation import virtual_time

START_SECONDS = 3600.0  # that loading the first instances may take
TELL_SECONDS = 0.5


class Progress(NamedTuple):
    """How far a run is: seconds since requests could come, requests that came, and those of them that ended."""

    at: float
    came: int
    ended: int


@dataclass(frozen=True, kw_only=True)
class PlayOptions:
    """What else is wanted of a run. It ends at second `until`, or once all requests have ended."""

    until: float | None = None
    questions: Sequence[Question] = ()
    log: LogSink | None = None
    tell: Callable[[Progress], None] = lambda progress: None


def play(system: ScenarioSystem, options: PlayOptions) -> tuple[SimulationResult, list[AnsweredQuestion]]:
    """Run it in this process. Raises ValueError for what is wrong with the scenario, as where a first instance never
    serves."""
    requests = draw_requests(system)
    with quiet(), rare_collections():
        played = virtual_time.run(_play(system, requests, options), limit_seconds=float("inf"))
    if played is None:
        raise ValueError(
            f"models: their first instances did not all serve after {START_SECONDS:g} s; give hosts of the topology "
            "faster disks, or models fewer min-instances"
        )
    return played


async def _play(
    system: ScenarioSystem, requests: Sequence[Due], options: PlayOptions
) -> tuple[SimulationResult, list[AnsweredQuestion]] | None:
    """The run, or None where it could not begin."""
    cpu, seen = time.process_time(), Seen()
    async with virtual_cluster(system.cluster) as made:
        watch, injector = UsageWatch(made.broker), ClusterFaultInjector(made, system.seed)
        made.log.takers.append(seen.note_event)
        if options.log is not None:
            made.log.takers.append(LogFile(options.log).write)
        if not await start_models(made, system):
            return None
        begun = made.now
        injector.start(system.faults)
        async with asyncio.TaskGroup() as side:
            asked = [side.create_task(put(made, one, begun)) for one in options.questions]
            telling = side.create_task(_tell(made, seen, begun, options.tell))
            await _send(made, system, requests, seen, begun, options.until)
            telling.cancel()
            # What is asked about later moments is no part of the run.
            made.log.takers.clear()
            run = summarise_run(system, seen, watch, made, begun, time.process_time() - cpu)
            result = summarise(system, seen, made, injector, begun, run)
        await injector.close()
        return result, [each.result() for each in asked]


async def start_models(made: VirtualCluster, system: ScenarioSystem) -> bool:
    """Register all models, and wait until each has its fewest instances. Returns whether they came to serve."""
    for spec in system.specs:
        await register(made, spec)
    needed = sum(spec.min_instances * spec.tensor_parallel_size for spec in system.specs)

    async def there() -> bool:
        return len(await workers_in(made, "serving")) >= needed

    try:
        await until(there, START_SECONDS, every=0.1)
    except TimeoutError:
        return False
    return True


async def _send(
    made: VirtualCluster,
    system: ScenarioSystem,
    requests: Sequence[Due],
    seen: Seen,
    begun: float,
    until: float | None,
) -> None:
    """Send each request when it is due. Returns when all have ended and the scenario is over, or at second `until`."""

    async def one(due: Due, ask: Ask) -> None:
        seen.records[due.number] = await fetch(made.gateway, due.model, ask)

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as tasks:
            for due in requests:
                await asyncio.sleep(begun + due.arrival.at - made.now)
                seen.came.append(due)
                tasks.create_task(one(due, make_ask(system, due)))
        await asyncio.sleep(begun + system.scenario.file.seconds - made.now)

    sending = asyncio.create_task(all_of_them())
    await asyncio.wait([sending], timeout=None if until is None else until)
    if not sending.done():
        sending.cancel()
        await asyncio.wait([sending])
    elif sending.exception() is not None:
        await sending


async def _tell(made: VirtualCluster, seen: Seen, begun: float, tell: Callable[[Progress], None]) -> None:
    while True:
        await asyncio.sleep(TELL_SECONDS)
        tell(Progress(made.now - begun, len(seen.came), len(seen.records)))
