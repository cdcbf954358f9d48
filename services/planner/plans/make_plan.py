"""Plans a multicast by the policy of a given name, and predicts when its blocks arrive. Pure.

For a prediction every link is shared fairly, and chunks are passed on as they come.
"""

from collections.abc import Mapping, Sequence
from typing import assert_never

import msgspec

from livescale.services.planner.plans.baselines import plan_fanout, plan_local, plan_ring, plan_tree
from livescale.services.planner.plans.binomial import plan_binomial
from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.flow_times import (
    Line,
    Times,
    all_alike,
    blocks_on,
    draw_lines,
    forward,
    time_steps,
)
from livescale.services.planner.plans.fluid import simulate
from livescale.services.planner.plans.plan import CannotPlan, Multicast, Policy, TransferFlow, TransferPlan


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


SMALL = 600  # blocks over all flows, up to which a simulation takes little time


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
