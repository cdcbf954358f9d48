"""Plans a multicast by the policy of a given name, and predicts when its blocks arrive. Pure.

For a prediction every link is shared fairly, and chunks are passed on as they come.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import assert_never

import msgspec

from livescale.services.planner.plans.baselines import plan_fanout, plan_local, plan_ring, plan_tree
from livescale.services.planner.plans.binomial import plan_binomial
from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.flow_times import (
    Line,
    Links,
    Times,
    all_alike,
    blocks_on,
    draw_lines,
    find_upstream,
    forward,
    in_order,
    sustained_speeds,
    time_steps,
)
from livescale.services.planner.plans.plan import CannotPlan, Multicast, Policy, TransferFlow, TransferPlan
from livescale.shared.links.fair_rates import fair_rates

SMALL = 600  # blocks over all flows, up to which a simulation takes little time
CLOSE = 1e-9  # a share of a block that counts as none
NEVER = float("inf")


def make_plan(
    policy: Policy, multicast: Multicast, *, sources: int = 0, blocks: int = 0, block_seconds: float = 0.0
) -> TransferPlan:
    """Plan a multicast by the policy of this name. Raises CannotPlan.

    `sources`, `blocks` and `block_seconds` are for the binomial pipeline: see `plan_binomial`.
    """
    if not multicast.targets:
        raise CannotPlan("there is no target")
    match policy:
        case "chains":
            return plan_chains(multicast)
        case "binomial":
            return plan_binomial(multicast, sources, blocks, block_seconds)
        case "tree":
            return plan_tree(multicast)
        case "fanout":
            return plan_fanout(multicast)
        case "ring":
            return plan_ring(multicast)
        case "local":
            return plan_local(multicast)
        case _:
            assert_never(policy)


class Prediction(msgspec.Struct, frozen=True):
    """When blocks are whole, in seconds from the start, by target and block."""

    ready: Mapping[str, Mapping[int, float]]

    @property
    def seconds(self) -> float:
        """When the last target has everything, or zero without targets."""
        return max((self.whole(target) for target in self.ready), default=0.0)

    def whole(self, target: str) -> float:
        """Return when this target has everything, in seconds from the start."""
        return max(self.ready[target].values(), default=0.0)


def predict(multicast: Multicast, plan: TransferPlan, chunk_bytes: int, block_seconds: float = 0.0) -> Prediction:
    """Predict a plan in whichever way suits its flows.

    `chunk_bytes` are forwarded at once, and `block_seconds` is what a scheduled block costs besides its bytes. Chains
    are predicted in closed form or from hop to hop, schedules step by step, and small plans of other policies by a
    simulation.
    """
    ends: Sequence[Times]
    if plan.policy == "chains" and all_alike(plan.flows):
        return follow_lines(multicast, plan, chunk_bytes)
    if any(flow.steps for flow in plan.flows):
        ends = follow_schedule(multicast, plan.flows, chunk_bytes, block_seconds)
    elif plan.policy == "chains" or sum(len(flow.blocks) for flow in plan.flows) > SMALL:
        ends = forward(multicast, plan.flows, chunk_bytes)
    else:
        ends = simulate(multicast, plan.flows, chunk_bytes)
    return collect_ready(plan, ends)


def follow_lines(multicast: Multicast, plan: TransferPlan, chunk_bytes: int) -> Prediction:
    """Predict flows that all carry the same blocks in the same order, in closed form."""
    into: dict[str, list[Line]] = {target: [] for target in plan.targets}
    for flow, line in zip(plan.flows, draw_lines(multicast, plan.flows, chunk_bytes), strict=True):
        into[flow.receiver].append(line)
    blocks = plan.flows[0].blocks
    sizes = [multicast.block_bytes[block] for block in blocks]
    return Prediction({id: dict(zip(blocks, blocks_on(lines, sizes), strict=True)) for id, lines in into.items()})


def follow_schedule(
    multicast: Multicast, flows: Sequence[TransferFlow], chunk_bytes: int, block_seconds: float
) -> Sequence[Times]:
    """Return when the blocks of each flow are through, where some flows keep to a schedule.

    Before the schedule its source may be put together, and after it others may follow in their domains.
    """
    taking_part = {flow.receiver for flow in flows if flow.steps}
    first = [flow for flow in flows if not flow.steps and flow.receiver not in taking_part]
    coming: dict[tuple[str, int], float] = {}
    for flow, times in zip(first, forward(multicast, first, chunk_bytes), strict=True):
        for block, time in zip(flow.blocks, times, strict=True):
            coming[flow.receiver, block] = max(time, coming.get((flow.receiver, block), 0.0))
    return forward(multicast, flows, chunk_bytes, time_steps(multicast, flows, block_seconds, coming))


def collect_ready(plan: TransferPlan, ends: Sequence[Times]) -> Prediction:
    """Return when each block is whole at each target, which is when its last lane is through."""
    ready: dict[str, dict[int, float]] = {target: {} for target in plan.targets}
    for flow, times in zip(plan.flows, ends, strict=True):
        blocks = ready[flow.receiver]
        if flow.lanes == 1:
            blocks.update(zip(flow.blocks, times, strict=True))
            continue
        for block, time in zip(flow.blocks, times, strict=True):
            if time > blocks.get(block, 0.0):
                blocks[block] = time
    return Prediction(ready)


def simulate(multicast: Multicast, flows: Sequence[TransferFlow], chunk_bytes: int) -> list[list[float]]:
    """Return when each flow's blocks are through, in seconds from the start, where flows share links fairly at every
    moment. It is exact, but slow for large plans.

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
    """The state of all flows between two events. Until the next event all speeds stay as they are.

    Speeds are in blocks a second, as each flow is somewhere within a block of its own.
    """

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
