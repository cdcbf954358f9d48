"""When blocks get through hops that forward chunk by chunk, as a recursion from hop to hop and block to block. Pure."""

from collections.abc import Mapping, Sequence

from livescale.services.planner.plans.network import Multicast
from livescale.services.planner.plans.plan import Flow
from livescale.services.planner.plans.rates import sustained_speeds
from livescale.services.planner.plans.upstream import find_upstream, in_order

Times = Sequence[float]


def forward(
    multicast: Multicast, flows: Sequence[Flow], chunk_bytes: int, known: Mapping[int, Times] | None = None
) -> Sequence[Times]:
    """When each flow's blocks are through, from those of the flows upstream. Shares are those while all run; the times
    of some flows, by number, may be known."""
    known = known or {}
    upstream = find_upstream(flows)
    order = in_order(upstream)
    speeds = sustained_speeds(multicast, flows, upstream, order)
    first: list[Times] = [()] * len(flows)  # when a block's first chunk is through
    ends: list[Times] = [()] * len(flows)
    for index in order:
        flow = flows[index]
        if index in known:
            first[index] = ends[index] = known[index]
            continue
        sizes = [multicast.block_bytes[block] / flow.lanes for block in flow.blocks]
        arriving = [(flows[up], first[up], ends[up]) for up in upstream[index]]
        begun, whole = arrivals(flow, sizes, arriving, chunk_bytes)
        first[index], ends[index] = pass_on(sizes, begun, whole, chunk_bytes, speeds[index])
    return ends


def pass_on(
    sizes: Sequence[float], begun: Times, whole: Times, chunk_bytes: int, speed: float
) -> tuple[list[float], list[float]]:
    """One hop: a block starts with its first chunk and ends no sooner than a chunk after the sender has all of it."""
    first, ends = [], []
    now = 0.0
    for size, begin, end in zip(sizes, begun, whole, strict=True):
        start = now if now > begin else begin
        chunk = (chunk_bytes if chunk_bytes < size else size) / speed
        first.append(start + chunk)
        now = max(start + size / speed, end + chunk)
        ends.append(now)
    return first, ends


def arrivals(
    flow: Flow, sizes: Sequence[float], upstream: Sequence[tuple[Flow, Times, Times]], chunk_bytes: int
) -> tuple[Times, Times]:
    """When the sender has the first chunk of each block, and all of it; what no flow brings it has from the start."""
    if len(upstream) == 1 and upstream[0][0].blocks == flow.blocks and upstream[0][0].lanes == flow.lanes:
        return upstream[0][1:]
    begun, whole = dict.fromkeys(flow.blocks, 0.0), dict.fromkeys(flow.blocks, 0.0)
    size_of = dict(zip(flow.blocks, sizes, strict=True))
    for up, first, ends in upstream:
        for block, begin, end in zip(up.blocks, first, ends, strict=True):
            if block in whole:
                # A chunk of a thinner lane is spread over more of the block than what has come first.
                first_share = min(1.0, chunk_bytes * up.lanes / (size_of[block] * flow.lanes))
                rest = min(1.0, chunk_bytes / size_of[block]) - first_share
                if rest > 0:
                    begin += (end - begin) * rest / (1 - first_share)
                begun[block] = max(begun[block], begin)
                whole[block] = max(whole[block], end)
    return list(begun.values()), list(whole.values())
