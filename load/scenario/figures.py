"""What a simulated run shows, from what was seen of its requests and scales."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from livescale.load.bench.systems.play import AnsweredRequest, SystemRun, since
from livescale.load.records import RequestRecord, find_fault
from livescale.load.scenario.requests import Due
from livescale.load.scenario.result import ALL, FaultFigures, ModelFigures, ScaleFigures, SimulationResult
from livescale.load.scenario.system import ScenarioSystem
from livescale.load.simulate.cluster import EPOCH, VirtualCluster
from livescale.load.simulate.event_log import LoggedEvent
from livescale.load.simulate.faults import ClusterFaultInjector
from livescale.load.simulate.usage import UsageWatch
from livescale.shared.messages.scaling import ScaleRecord


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


def summarise(
    system: ScenarioSystem,
    seen: Seen,
    made: VirtualCluster,
    injector: ClusterFaultInjector,
    begun: float,
    run: SystemRun,
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
