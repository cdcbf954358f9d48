"""Everybody's share in a plan that a bench carries out, and how long it took."""

from collections.abc import Sequence

from load.bench.fleet import Fleet
from load.bench.nodes import Done, Job, Share
from shared.messages.transfers import Flow, Inflow, Outflow

MAX_FLOWS = 1024  # of a plan; its tickets differ from those of the plan before


def chain_jobs(fleet: Fleet, length: int, ticket: int, chunk_bytes: int) -> dict[int, Job]:
    """Node 0 gives, nodes 1 to `length` take and pass on; the last begins first."""
    hops = [Flow(sender=str(i), receiver=str(i + 1), ticket=ticket * MAX_FLOWS + i) for i in range(length)]
    return jobs_of(fleet, hops, chunk_bytes)


def jobs_of(fleet: Fleet, flows: Sequence[Flow], chunk_bytes: int) -> dict[int, Job]:
    """Everybody's share in a plan whose nodes are named by their numbers; node 0 has everything, and begins last."""
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
        jobs[index] = Share(chunk_bytes, inflows, outflows, fleet.blocks)
    return jobs


def seconds(done: dict[int, Done]) -> float:
    """From the begin of the source (of the only process, in a copy) to the end of the last."""
    source = done[min(done)]
    return max(one.ended for one in done.values()) - source.began
