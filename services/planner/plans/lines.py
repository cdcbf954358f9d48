"""When parameters get through hops that all carry the whole model in the same order, in closed form. Pure.

What a flow has carried is a line over time: X bytes of the model are through after base + pace * X. In a chain all hops
run at the pace of the slowest so far, and each adds one chunk: T = M/B + (R - 1) * chunk/B.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from livescale.services.planner.plans.network import Multicast
from livescale.services.planner.plans.plan import Flow
from livescale.services.planner.plans.rates import sustained_speeds
from livescale.services.planner.plans.upstream import find_upstream, in_order


class Line(NamedTuple):
    """Seconds, and seconds a byte of the model (of which a lane carries only its part)."""

    base: float
    pace: float

    def at(self, size_bytes: float) -> float:
        return self.base + self.pace * size_bytes


def all_alike(flows: Sequence[Flow]) -> bool:
    """Whether the closed form holds."""
    return bool(flows) and all(flow.blocks == flows[0].blocks and not flow.steps for flow in flows)


def draw_lines(multicast: Multicast, flows: Sequence[Flow], chunk_bytes: int) -> list[Line]:
    """One for each flow. Shares of links are those while all run."""
    upstream = find_upstream(flows)
    order = in_order(upstream)
    speeds = sustained_speeds(multicast, flows, upstream, order)
    size_bytes = sum(multicast.block_bytes[block] for block in flows[0].blocks)
    chunk_bytes = min(chunk_bytes, max(multicast.block_bytes))
    lines = [Line(0.0, 0.0)] * len(flows)
    for index in order:
        flow, speed = flows[index], speeds[index]
        own = 1 / (speed * flow.lanes)
        # A chunk of a lane is spread over as many times its bytes of the model.
        begun = max((lines[up].at(chunk_bytes * flow.lanes) for up in upstream[index]), default=0.0)
        ways = [Line(begun, own)]
        ways += [Line(lines[up].base + chunk_bytes / speed, lines[up].pace) for up in upstream[index]]
        lines[index] = max(ways, key=lambda line: line.at(size_bytes))
    return lines


def blocks_on(lines: Iterable[Line], sizes: Sequence[int]) -> list[float]:
    """When blocks are whole: the last of several lanes has come."""
    distinct = set(lines)
    ends = list(accumulate(sizes))
    latest = Line(max(line.base for line in distinct), max(line.pace for line in distinct))
    if latest in distinct:
        return [latest.at(end) for end in ends]
    return [max(line.at(end) for line in distinct) for end in ends]
