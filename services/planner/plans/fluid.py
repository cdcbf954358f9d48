"""A plan carried out by flows that share links fairly at every moment. It is exact, but slow for large plans. Pure.

All speeds are in blocks a second, as each flow is somewhere within a block of its own.
"""

from collections.abc import Iterator, Sequence

from livescale.services.planner.plans.flow_times import Links, find_upstream, in_order, sustained_speeds
from livescale.services.planner.plans.plan import Multicast, TransferFlow
from livescale.shared.links.fair_rates import fair_rates

CLOSE = 1e-9  # a share of a block that counts as none
NEVER = float("inf")


def simulate(multicast: Multicast, flows: Sequence[TransferFlow], chunk_bytes: int) -> list[list[float]]:
    """Return when each flow's blocks are through, in seconds from the start.

    Raises ValueError where flows wait for each other.
    """
    upstream = find_upstream(flows)
    order = in_order(upstream)
    fluid = Fluid(multicast, flows, upstream, order)
    while fluid.is_running:
        fluid.step()
    # A fluid has no chunks; each hop after the first comes one chunk later.
    lags = [0.0] * len(flows)
    speeds = sustained_speeds(multicast, flows, upstream, order)
    for flow in order:
        for up in upstream[flow]:
            chunk = min(chunk_bytes, max(fluid.sizes[flow]))
            lags[flow] = max(lags[flow], lags[up] + chunk / speeds[flow])
    return [[end + lag for end in ends] for ends, lag in zip(fluid.ends, lags, strict=True)]


class Fluid:
    """The state of all flows between two events. Until the next event all speeds stay as they are."""

    def __init__(
        self,
        multicast: Multicast,
        flows: Sequence[TransferFlow],
        upstream: Sequence[Sequence[int]],
        order: Sequence[int],
    ) -> None:
        self._links = Links(flows, multicast)
        self._upstream = upstream
        self._order = order
        self._blocks = [flow.blocks for flow in flows]
        self._positions = [{block: index for index, block in enumerate(flow.blocks)} for flow in flows]
        self.sizes = [[multicast.block_bytes[block] / flow.lanes for block in flow.blocks] for flow in flows]
        self._done = [0.0] * len(flows)  # share of the block under way
        self._now = 0.0
        self.ends: list[list[float]] = [[] for _ in flows]

    @property
    def is_running(self) -> bool:
        """Whether a flow still has a block to send."""
        return any(self._runs(flow) for flow in self._order)

    def step(self) -> None:
        """Go on to the next event: a block is through, or its flow has caught up with the one that feeds it."""
        speeds = self._speeds()
        running = [flow for flow in self._order if self._runs(flow)]
        pause = min(self._until_event(flow, speeds) for flow in running)
        self._now += pause
        for flow in running:
            self._done[flow] += speeds[flow] * pause if speeds[flow] < NEVER else 1.0
            if self._done[flow] >= 1 - CLOSE:
                self._done[flow] = 0.0
                self.ends[flow].append(self._now)

    def _runs(self, flow: int) -> bool:
        return len(self.ends[flow]) < len(self._blocks[flow])

    def _size(self, flow: int) -> float:
        return self.sizes[flow][len(self.ends[flow])]

    def _waits_for(self, flow: int) -> Iterator[tuple[int, bool, float]]:
        """Yield the flows that bring the block under way: whether each is at that block now, and how far it is
        ahead."""
        block = self._blocks[flow][len(self.ends[flow])]
        for up in self._upstream[flow]:
            ahead = self._positions[up].get(block, -1) - len(self.ends[up])
            if ahead >= 0:
                yield up, ahead == 0, self._done[up] - self._done[flow]

    def _speeds(self) -> list[float]:
        """Return the speed of each flow: its fair share of the links, but no more than comes in."""
        caps = [0.0] * len(self._blocks)
        for flow in self._order:
            if self._runs(flow) and all(is_at_it for _, is_at_it, _ in self._waits_for(flow)):
                caps[flow] = NEVER
        # A flow that is slowed down leaves its share to others: deal again until none is faster than what feeds it.
        while True:
            rates = fair_rates(self._links.used_by, self._links.capacity, caps)
            speeds = [rate / self._size(flow) if self._runs(flow) else 0.0 for flow, rate in enumerate(rates)]
            held = list(caps)
            for flow in self._order:
                for up, _, room in self._waits_for(flow) if caps[flow] else ():
                    if room < CLOSE and speeds[flow] > speeds[up] * (1 + CLOSE):
                        speeds[flow] = speeds[up]
                        held[flow] = speeds[up] * self._size(flow)
            if held == caps:
                return speeds
            caps = held

    def _until_event(self, flow: int, speeds: Sequence[float]) -> float:
        speed = speeds[flow]
        if not speed:
            return NEVER
        catches_up = [
            room / (speed - speeds[up]) for up, _, room in self._waits_for(flow) if room >= CLOSE and speed > speeds[up]
        ]
        return min((1 - self._done[flow]) / speed, *catches_up, NEVER)
