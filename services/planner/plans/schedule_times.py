"""How long a schedule takes: a node sends one block at a time, and receives one. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from livescale.services.planner.plans.network import Multicast
from livescale.services.planner.plans.plan import Flow
from livescale.services.planner.plans.rates import Links


def time_steps(
    multicast: Multicast, flows: Sequence[Flow], block_seconds: float, coming: Mapping[tuple[str, int], float]
) -> dict[int, list[float]]:
    """When the blocks of each scheduled flow are through, by the flow's number.

    A step of a flow begins when its sender and its receiver are through with what they had to do before, and takes
    `block_seconds` besides its bytes. Links are shared by the flows that use them in the same step; none carries more
    than it can since the first began, flows outside the schedule included. `coming`: when blocks come by those.
    """
    links = Links(flows, multicast)
    work = outside_work(multicast, flows, links)
    since: dict[int, float] = {link: 0.0 for link, seconds in enumerate(work) if seconds}
    sharing = Counter((step, link) for index, step, _ in _parts(flows) for link in links.used_by[index])
    free_at: dict[tuple[str, str], float] = defaultdict(float)  # by node and direction
    there_at = defaultdict(float, coming)  # by node and block
    ends: dict[int, list[float]] = defaultdict(list)
    for index, step, blocks in sorted(_parts(flows), key=lambda part: part[1]):
        flow, used = flows[index], links.used_by[index]
        speed = min((links.capacity[link] / sharing[step, link] for link in used), default=float("inf"))
        now = max(free_at[flow.sender, "out"], free_at[flow.receiver, "in"])
        now = max(now, *(there_at[flow.sender, block] for block in blocks)) + block_seconds
        for block in blocks:
            size, begun = multicast.block_bytes[block], now
            now += size / speed
            for link in used:
                work[link] += size / links.capacity[link]
                now = max(now, since.setdefault(link, begun) + work[link])
            there_at[flow.receiver, block] = now
            ends[index].append(now)
        free_at[flow.sender, "out"] = free_at[flow.receiver, "in"] = now
    return ends


def outside_work(multicast: Multicast, flows: Sequence[Flow], links: Links) -> list[float]:
    """For how long each link is busy with flows outside the schedule."""
    busy = [0.0] * len(links.capacity)
    for flow, used in zip(flows, links.used_by, strict=True):
        if not flow.steps:
            size = sum(multicast.block_bytes[block] for block in flow.blocks) / flow.lanes
            for link in used:
                busy[link] += size / links.capacity[link]
    return busy


def _parts(flows: Sequence[Flow]) -> Iterator[tuple[int, int, list[int]]]:
    """Number of the flow, step, and the blocks that go together in it."""
    for index, flow in enumerate(flows):
        if flow.steps:
            for step, pairs in groupby(zip(flow.steps, flow.blocks, strict=True), key=lambda pair: pair[0]):
                yield index, step, [block for _, block in pairs]
