"""Plans carried out by the processes of a bench, and when each of them had what."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from livescale.load.bench.fleet import Fleet
from livescale.load.bench.holders import Cold
from livescale.load.bench.jobs import jobs_of
from livescale.load.bench.nodes import Done, Share
from livescale.services.planner.orders import ticketed
from livescale.services.planner.plans.execution_pipelines import pipeline_ready
from livescale.services.planner.plans.plan import TransferPlan


class Carried(msgspec.Struct, frozen=True):
    """A plan that was carried out. `ready`: seconds from the source's begin until a target had a block."""

    plan: TransferPlan
    ready: Mapping[str, Mapping[int, float]]

    @property
    def seconds(self) -> float:
        """Until the last target had all."""
        return max(max(times.values()) for times in self.ready.values())

    @property
    def executable(self) -> float:
        """When the first execution pipeline had every block."""
        return min(pipeline_ready(nodes, self.ready) for nodes in self.plan.pipelines)


def carry_out(
    fleet: Fleet, names: Sequence[str], plan: TransferPlan, chunk_bytes: int, disks: Mapping[str, float] | None = None
) -> Carried:
    """`names` are those that the plan has for the processes of the fleet, sources first. `disks`: who of them reads the
    model first, and how fast. Raises BenchFailed."""
    number = {name: str(index) for index, name in enumerate(names)}
    flows = [
        replace(flow, sender=number[flow.sender], receiver=number[flow.receiver])
        for flow in ticketed(plan, len(fleet.blocks), fleet.tickets)
    ]
    jobs = jobs_of(fleet, flows, chunk_bytes)
    cold = {names.index(name): rate for name, rate in (disks or {}).items()}
    reading = {index: Cold(job, cold[index]) for index, job in jobs.items() if index in cold and isinstance(job, Share)}
    done = fleet.run({**jobs, **reading})
    began = done[min(done)].began
    return Carried(plan, {target: since(began, done[names.index(target)]) for target in plan.targets})


def since(began: float, done: Done) -> dict[int, float]:
    return {block: end - began for block, end in enumerate(done.ends)}
