"""The rates of flows that share links fairly, and when blocks get through them. Pure.

Flows forward each other's chunks, or keep to a schedule.
`forward` goes from hop to hop and from block to block. Where all hops carry the whole model in the same order, there is
a closed form, `draw_lines`. What a flow has carried is then a line over time: X bytes of the model are through after
base + pace * X. In a chain all hops run at the pace of the slowest so far, and each adds one chunk: T = M/B + (R - 1) *
chunk/B. `time_steps` is for the flows of a schedule.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from math import gcd
from typing import NamedTuple

from livescale.services.planner.plans.plan import ClusterNode, Multicast, TransferFlow, serving_rates
from livescale.shared.links.fair_rates import fair_rates
from livescale.shared.topology.paths import path_between

Link = tuple[str, str]  # kind and owner
# What one flow cannot use goes to others, which may hold up others still. That is settled after a few rounds.
ROUNDS = 8
LEAST_SHARE = 0.05  # of a link is left for parameters, however much serving has been measured to send


class Links:
    """The links of a set of flows: which of them each flow uses, and what serving leaves of each."""

    def __init__(self, flows: Sequence[TransferFlow], multicast: Multicast) -> None:
        nodes = multicast.nodes
        self._serving = serving_rates(multicast)
        self._numbers: dict[Link, int] = {}
        self.capacity: list[float] = []
        self.used_by = [self._path(nodes[flow.sender], nodes[flow.receiver]) for flow in flows]

    def _path(self, sender: ClusterNode, receiver: ClusterNode) -> tuple[int, ...]:
        resources = path_between(sender.at, receiver.at).resources
        links = [self._number((resource.kind, resource.owner), resource.rate) for resource in resources]
        if sender.place == "disk":
            links.append(self._number(("disk", sender.at.host), sender.at.disk))
        return tuple(links)

    def _number(self, link: Link, capacity: float) -> int:
        number = self._numbers.setdefault(link, len(self.capacity))
        if number == len(self.capacity):
            left = capacity - self._serving.get(link, 0.0)
            self.capacity.append(max(left, capacity * LEAST_SHARE))
        return number

    def slack(self, rates: Sequence[float]) -> list[float]:
        """Return how much each flow could have besides its rate if the others kept theirs, in bytes a second."""
        left = list(self.capacity)
        for links, rate in zip(self.used_by, rates, strict=True):
            for link in links:
                left[link] -= rate
        return [max(0.0, min((left[link] for link in links), default=0.0)) for links in self.used_by]


def sustained_speeds(
    multicast: Multicast, flows: Sequence[TransferFlow], upstream: Sequence[Sequence[int]], order: Sequence[int]
) -> list[float]:
    """Return the rate that each flow's links let it have.

    A flow that is held up by the flow before it leaves the rest of its share to others. `upstream` has the flows that
    bring what each flow sends, and `order` is one in which they come first.
    """
    links = Links(flows, multicast)
    rates = fair_rates(links.used_by, links.capacity, [float("inf")] * len(flows))
    for _ in range(ROUNDS):
        held, caps = list(rates), [float("inf")] * len(flows)
        for index in order:
            for up in upstream[index]:
                if flows[up].blocks == flows[index].blocks:
                    caps[index] = min(caps[index], held[up] * flows[up].lanes / flows[index].lanes)
            held[index] = min(rates[index], caps[index])
        if held == rates:
            break
        rates = fair_rates(links.used_by, links.capacity, caps)
    return [rate + slack for rate, slack in zip(rates, links.slack(rates), strict=True)]


Times = Sequence[float]


def find_upstream(flows: Sequence[TransferFlow]) -> list[list[int]]:
    """Return for each flow those into its sender that share stripes of blocks with it."""
    into: dict[str, list[int]] = defaultdict(list)
    for index, flow in enumerate(flows):
        into[flow.receiver].append(index)
    return [[up for up in into.get(flow.sender, ()) if _share(flows[up], flow)] for flow in flows]


def _share(one: TransferFlow, other: TransferFlow) -> bool:
    if (one.lane - other.lane) % gcd(one.lanes, other.lanes):
        return False
    return one.blocks is other.blocks or not set(one.blocks).isdisjoint(other.blocks)


def in_order(upstream: Sequence[Sequence[int]]) -> list[int]:
    """Sort flows so that each comes after those that bring what it sends. Raises ValueError where flows wait for each
    other."""
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


def forward(
    multicast: Multicast, flows: Sequence[TransferFlow], chunk_bytes: int, known: Mapping[int, Times] | None = None
) -> Sequence[Times]:
    """Return when each flow's blocks are through, in seconds from the start.

    Links are shared as while all flows run. The times of some flows, by number, may be known.
    """
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
    """Return when the first chunk of each block, and all of it, is through one hop.

    A block starts with its first chunk and ends no sooner than a chunk after the sender has all of it. `speed` is in
    bytes a second.
    """
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
    flow: TransferFlow, sizes: Sequence[float], upstream: Sequence[tuple[TransferFlow, Times, Times]], chunk_bytes: int
) -> tuple[Times, Times]:
    """Return when the sender has the first chunk of each block, and all of it.

    It has from the start what no flow brings.
    """
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


class Line(NamedTuple):
    """The time at which some bytes of the model are through: `base` seconds, and `pace` seconds for each byte.

    A lane carries only its part of these bytes.
    """

    base: float
    pace: float

    def at(self, size_bytes: float) -> float:
        """Return when so many bytes of the model are through, in seconds from the start."""
        return self.base + self.pace * size_bytes


def all_alike(flows: Sequence[TransferFlow]) -> bool:
    """Say whether the closed form holds: all flows carry the same blocks in the same order, without a schedule."""
    return bool(flows) and all(flow.blocks == flows[0].blocks and not flow.steps for flow in flows)


def draw_lines(multicast: Multicast, flows: Sequence[TransferFlow], chunk_bytes: int) -> list[Line]:
    """Return a line for each flow. Links are shared as while all flows run."""
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
    """Return when blocks of these sizes are whole, which is when the last of several lanes has come."""
    distinct = set(lines)
    ends = list(accumulate(sizes))
    latest = Line(max(line.base for line in distinct), max(line.pace for line in distinct))
    if latest in distinct:
        return [latest.at(end) for end in ends]
    return [max(line.at(end) for line in distinct) for end in ends]


def time_steps(
    multicast: Multicast, flows: Sequence[TransferFlow], block_seconds: float, coming: Mapping[tuple[str, int], float]
) -> dict[int, list[float]]:
    """Return when the blocks of each scheduled flow are through, by the flow's number.

    A node sends one block at a time, and receives one. A step of a flow begins when its sender and its receiver are
    through with what they had to do before, and takes `block_seconds` besides its bytes. Links are shared by the flows
    that use them in the same step, and none carries more than it can since the first step began, flows outside the
    schedule included. `coming`: when blocks that those bring are at a node.
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


def outside_work(multicast: Multicast, flows: Sequence[TransferFlow], links: Links) -> list[float]:
    """Return for how many seconds each link is busy with flows outside the schedule."""
    busy = [0.0] * len(links.capacity)
    for flow, used in zip(flows, links.used_by, strict=True):
        if not flow.steps:
            size = sum(multicast.block_bytes[block] for block in flow.blocks) / flow.lanes
            for link in used:
                busy[link] += size / links.capacity[link]
    return busy


def _parts(flows: Sequence[TransferFlow]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield each step of each flow: the flow's number, the step, and the blocks that go together in it."""
    for index, flow in enumerate(flows):
        if flow.steps:
            for step, pairs in groupby(zip(flow.steps, flow.blocks, strict=True), key=lambda pair: pair[0]):
                yield index, step, [block for _, block in pairs]
