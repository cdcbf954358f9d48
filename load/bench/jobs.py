"""Everybody's share in a plan that a bench carries out, and how long it took."""

from collections.abc import Sequence

from livescale.load.bench.fleet import Fleet
from livescale.load.bench.nodes import Done, Hop, Job, Share
from livescale.shared.messages.transfers import Flow, Inflow, Outflow


def hop_jobs(fleet: Fleet, count: int) -> dict[int, Job]:
    """Node 0 gives node 1 the first blocks, so many of them, without checksums."""
    takes = Hop(fleet.nodes[0], count, takes=fleet.blocks[:count])
    return {1: takes, 0: Hop(fleet.nodes[1], count)}


def chain_jobs(fleet: Fleet, length: int, chunk_bytes: int, count: int | None = None) -> dict[int, Job]:
    """Node 0 gives, nodes 1 to `length` take and pass on; the last begins first. `count`: of the first blocks only."""
    hops = [Flow(sender=str(i), receiver=str(i + 1), ticket=next(fleet.tickets)) for i in range(length)]
    return jobs_of(fleet, hops, chunk_bytes, count)


def jobs_of(fleet: Fleet, flows: Sequence[Flow], chunk_bytes: int, count: int | None = None) -> dict[int, Job]:
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
        jobs[index] = Share(chunk_bytes, inflows, outflows, fleet.blocks[:count])
    return jobs


def seconds(done: dict[int, Done]) -> float:
    """From the begin of the source (of the only process, in a copy) to the end of the last."""
    source = done[min(done)]
    return max(one.ended for one in done.values()) - source.began
