"""Runs a scenario under virtual time."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import msgspec

from livescale.load.bench.systems.play import AnsweredRequest, SystemRun, since
from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.scenario.result import (
    ALL,
    Answer,
    FaultFigures,
    ModelFigures,
    Question,
    ScaleFigures,
    SimulationResult,
    put,
)
from livescale.load.scenario.system import ScenarioSystem
from livescale.load.simulate.client import fetch
from livescale.load.simulate.cluster import EPOCH, VirtualCluster, virtual_cluster
from livescale.load.simulate.event_log import LogFile, LoggedEvent, LogSink
from livescale.load.simulate.faults import FaultInjector
from livescale.load.simulate.start import made_up_ask, quiet, rare_collections, register, until, workers_in
from livescale.load.simulate.usage import UsageWatch
from livescale.load.trace import Arrival, fit
from livescale.shared.messages.scaling import ScaleRecord
from livescale.shared.simulation import virtual_time

START_SECONDS = 3600.0  # that loading the first instances may take
TELL_SECONDS = 0.5


class Progress(NamedTuple):
    """How far a run is: seconds since requests could come, requests that came, and those of them that ended."""

    at: float
    came: int
    ended: int


class Due(NamedTuple):
    """A request that is to come: its number among all, and for which model."""

    number: int
    model: str
    arrival: Arrival


@dataclass(frozen=True, kw_only=True)
class PlayOptions:
    """What else is wanted of a run. It ends at second `until`, or once all requests have ended."""

    until: float | None = None
    questions: Sequence[Question] = ()
    log: LogSink | None = None
    tell: Callable[[Progress], None] = lambda progress: None


@dataclass
class Seen:
    """What has happened in a run so far: requests, scales and logged events."""

    came: list[Due] = field(default_factory=list)
    records: dict[int, RequestRecord] = field(default_factory=dict)
    scales: dict[str, ScaleRecord] = field(default_factory=dict)

    def note_event(self, event: LoggedEvent) -> None:
        if event.subject.startswith("evt.plan."):
            record = msgspec.json.decode(event.data, type=ScaleRecord)
            self.scales[record.id] = record


def draw_requests(system: ScenarioSystem) -> list[Due]:
    """All requests in the order in which they come. Raises ValueError, which names the entry."""
    scenario, contexts = system.scenario, system.contexts()
    found = list[tuple[float, int, str, Arrival]]()
    for number, entry in enumerate(scenario.file.arrivals):
        model = scenario.file.model_of(entry)
        try:
            drawn = entry.draw(scenario.file.seconds, system.seed + number, scenario.beside)
        except ValueError as error:
            raise ValueError(f"arrivals[{number}]: {error}") from None
        found += [(arrival.at, number, model, arrival) for arrival in fit(drawn, contexts[model])]
    found.sort(key=lambda one: one[:2])
    return [Due(number, model, arrival) for number, (_, _, model, arrival) in enumerate(found)]


def play(system: ScenarioSystem, options: PlayOptions) -> tuple[SimulationResult, list[Answer]]:
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
) -> tuple[SimulationResult, list[Answer]] | None:
    """The run, or None where it could not begin."""
    cpu, seen = time.process_time(), Seen()
    async with virtual_cluster(system.cluster) as made:
        watch, injector = UsageWatch(made.broker), FaultInjector(made, system.seed)
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


def summarise(
    system: ScenarioSystem, seen: Seen, made: VirtualCluster, injector: FaultInjector, begun: float, run: SystemRun
) -> SimulationResult:
    """Gather the result of a run, up to the virtual time that it has reached."""
    return SimulationResult(
        scenario=system.scenario.name,
        seed=system.seed,
        topology=system.topology.name,
        workers=len(system.topology.gpus),
        engine_profile=system.stack.engine_profile,
        ended_at=run.seconds,
        digest=run.digest,
        events=made.log.count,
        models=list(model_figures(system, seen)),
        scales=[ScaleFigures.of(record, EPOCH + begun) for record in seen.scales.values()],
        faults=[FaultFigures.of(*each) for each in injector.happened],
        crashes=[f"{id} at {at - begun:.3f} s: {error!r}" for at, id, error in injector.crashes],
        used_seconds=run.used_seconds,
        cpu_seconds=run.cpu_seconds,
        run=run,
    )


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


def make_ask(system: ScenarioSystem, due: Due) -> Ask:
    """The request itself, made when it is sent. Its prompt shares nothing with others, and follows from the seed."""
    spec = next(spec for spec in system.specs if spec.name == due.model)
    vocabulary = system.scenario.configs[spec.path].vocab_size
    return made_up_ask(due.number, due.arrival, vocabulary, Random(f"{system.seed} {due.number}"))


async def _tell(made: VirtualCluster, seen: Seen, begun: float, tell: Callable[[Progress], None]) -> None:
    while True:
        await asyncio.sleep(TELL_SECONDS)
        tell(Progress(made.now - begun, len(seen.came), len(seen.records)))


def answered(system: ScenarioSystem, seen: Seen) -> Iterator[tuple[Due, AnsweredRequest | str | None]]:
    """Each request that counts, with its times; or what was wrong with it, or None if it had not ended."""
    for due in seen.came:
        record = seen.records.get(due.number)
        if due.arrival.at < system.scenario.file.warm_up:
            continue
        fault = None if record is None else find_fault(record)
        if record is None:
            yield due, None
        elif fault is not None or record.ttft is None:
            yield due, f"{record.id}: {fault}"
        else:
            yield due, AnsweredRequest(due.arrival.at, record.prompt_tokens, record.ttft, record.gaps)


def model_figures(system: ScenarioSystem, seen: Seen) -> Iterator[ModelFigures]:
    """The figures of each model, and of all together where there are several."""
    by_model: Mapping[str, list[AnsweredRequest | str | None]] = defaultdict(list)
    for due, came in answered(system, seen):
        by_model[due.model].append(came)
    names = [spec.name for spec in system.specs]
    for name in [*names, ALL] if len(names) > 1 else names:
        found = by_model[name] if name != ALL else [one for each in by_model.values() for one in each]
        good = [one for one in found if isinstance(one, AnsweredRequest)]
        yield ModelFigures.of(name, good, sum(isinstance(one, str) for one in found), found.count(None))


def summarise_run(
    system: ScenarioSystem, seen: Seen, watch: UsageWatch, made: VirtualCluster, begun: float, cpu_seconds: float
) -> SystemRun:
    """Gather what the page's pictures are drawn from, in the form of `bench systems`."""
    told, ended = system.scenario.file, made.now
    found = [came for _, came in answered(system, seen)]
    return SystemRun(
        system=system.scenario.name,
        seed=system.seed,
        digest=made.log.digest(),
        seconds=ended - begun,
        warm_up=told.warm_up,
        requests=[one for one in found if isinstance(one, AnsweredRequest)],
        faults=[one for one in found if isinstance(one, str)],
        workers=since(watch.workers, begun),
        cached=since(watch.cached, begun),
        network=[(at - begun, sent) for at, sent in sorted(made.links.flows.network_bytes.items()) if at >= begun],
        used_seconds=watch.used_seconds(begun + told.warm_up, ended),
        cpu_seconds=cpu_seconds,
    )
