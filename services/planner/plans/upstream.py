"""Which flows bring what a flow sends on. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from math import gcd

from livescale.services.planner.plans.plan import Flow


def find_upstream(flows: Sequence[Flow]) -> list[list[int]]:
    """For each flow those into its sender that share stripes of blocks with it."""
    into: dict[str, list[int]] = defaultdict(list)
    for index, flow in enumerate(flows):
        into[flow.receiver].append(index)
    return [[up for up in into.get(flow.sender, ()) if _share(flows[up], flow)] for flow in flows]


def _share(one: Flow, other: Flow) -> bool:
    if (one.lane - other.lane) % gcd(one.lanes, other.lanes):
        return False
    return one.blocks is other.blocks or not set(one.blocks).isdisjoint(other.blocks)


def in_order(upstream: Sequence[Sequence[int]]) -> list[int]:
    """Whoever brings something before whoever sends it on. Raises ValueError where flows wait for each other."""
    waiting = [len(ups) for ups in upstream]
    downstream: list[list[int]] = [[] for _ in upstream]
    for index, ups in enumerate(upstream):
        for up in ups:
            downstream[up].append(index)
    order = [index for index, count in enumerate(waiting) if not count]
    for index in order:  # grows meanwhile
        for down in downstream[index]:
            waiting[down] -= 1
            if not waiting[down]:
                order.append(down)
    if len(order) < len(upstream):
        raise ValueError("flows wait for each other")
    return order
