"""Turns a plan into each process's job, has it carried out, and tells when each process had which block."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from livescale.load.bench.transfer.fleet import BenchFleet
from livescale.load.bench.transfer.holder import Cold
from livescale.load.bench.transfer.node_messages import Done, Hop, Job, Share
from livescale.services.planner.orders import ticketed
from livescale.services.planner.plans.execution_pipelines import pipeline_ready
from livescale.services.planner.plans.plan import TransferPlan
from livescale.shared.messages.transfers import Flow, Inflow, Outflow


def hop_jobs(fleet: BenchFleet, count: int) -> dict[int, Job]:
    """Node 0 gives node 1 the first blocks, so many of them, without checksums."""
    takes = Hop(fleet.nodes[0], count, takes=fleet.blocks[:count])
    return {1: takes, 0: Hop(fleet.nodes[1], count)}


def chain_jobs(fleet: BenchFleet, length: int, chunk_bytes: int, count: int | None = None) -> dict[int, Job]:
    """Node 0 gives, nodes 1 to `length` take and pass on; the last begins first. `count`: of the first blocks only."""
    hops = [Flow(sender=str(i), receiver=str(i + 1), ticket=next(fleet.tickets)) for i in range(length)]
    return jobs_of(fleet, hops, chunk_bytes, count)


def jobs_of(fleet: BenchFleet, flows: Sequence[Flow], chunk_bytes: int, count: int | None = None) -> dict[int, Job]:
    """The share of each process in a plan whose nodes are named by their numbers. Node 0 has everything, and begins
    last."""
    nodes, jobs = fleet.nodes, dict[int, Job]()
    for index in sorted({int(end) for flow in flows for end in (flow.sender, flow.receiver)}, reverse=True):
        own = str(index)
        inflows = [
            Inflow(
                ticket=one.ticket, upstream=nodes[int(one.sender)], blocks=one.blocks, lane=one.lane, lanes=one.lanes
            )
            for one in flows
            if one.receiver == own
        ]
        outflows = [
            Outflow(ticket=one.ticket, downstream=nodes[int(one.receiver)], blocks=one.blocks, steps=one.steps)
            for one in flows
            if one.sender == own
        ]
        jobs[index] = Share(chunk_bytes, inflows, outflows, fleet.blocks[:count])
    return jobs


def seconds(done: dict[int, Done]) -> float:
    """The seconds from when the source (or the only process, in a copy) began until the last process ended."""
    source = done[min(done)]
    return max(one.ended for one in done.values()) - source.began


class CarriedPlan(msgspec.Struct, frozen=True):
    """A plan that was carried out. `ready`: seconds from the source's begin until a target had a block."""

    plan: TransferPlan
    ready: Mapping[str, Mapping[int, float]]

    @property
    def seconds(self) -> float:
        """The time until the last target had all blocks."""
        return max(max(times.values()) for times in self.ready.values())

    @property
    def executable(self) -> float:
        """When the first execution pipeline had every block."""
        return min(pipeline_ready(nodes, self.ready) for nodes in self.plan.pipelines)


def carry_out(
    fleet: BenchFleet,
    names: Sequence[str],
    plan: TransferPlan,
    chunk_bytes: int,
    disks: Mapping[str, float] | None = None,
) -> CarriedPlan:
    """Carry a plan out. `names` are the plan's names for the processes of the fleet, sources first. `disks` says which
    of them read the model from disk first, and how fast. Raises BenchFailed."""
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
    return CarriedPlan(plan, {target: since(began, done[names.index(target)]) for target in plan.targets})


def since(began: float, done: Done) -> dict[int, float]:
    return {block: end - began for block, end in enumerate(done.ends)}
