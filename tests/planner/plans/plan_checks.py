"""What must hold of every plan, whatever policy made it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import combinations
from math import gcd, lcm

from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.plan import (
    Multicast,
    ServingFlow,
    TransferFlow,
    TransferPlan,
    multicast_over,
    path_kind,
)
from livescale.shared.policy.invariants import check
from livescale.shared.topology.topology import Topology
from tests.planner.plans.clusters import BLOCKS

Lane = tuple[int, int]  # lane, lanes


def check_plan(multicast: Multicast, plan: TransferPlan) -> None:
    """Check all that must hold of a plan. Raises InvariantBroken."""
    check(broken_invariants(multicast, plan))


def broken_invariants(multicast: Multicast, plan: TransferPlan) -> Iterator[str]:
    yield from _wrong_targets(multicast, plan)
    yield from _not_exactly_once(multicast, plan)
    yield from _never_there(multicast, plan)
    yield from _against_serving(multicast, plan)
    yield from _steps_out_of_order(multicast, plan)


def _wrong_targets(multicast: Multicast, plan: TransferPlan) -> Iterator[str]:
    if len(set(plan.targets)) != len(plan.targets) or len(plan.targets) > multicast.wanted:
        yield f"{len(plan.targets)} targets, {len(set(plan.targets))} of them different, {multicast.wanted} wanted"
    if not set(plan.tails) <= set(plan.targets):
        yield "a tail is no target"
    nodes, nics = multicast.nodes, multicast.nics
    sending = {nics[flow.sender] for flow in plan.flows if flow.over == "network"}
    for tail in plan.tails:
        if nics[tail] in sending:
            yield f"{tail} is a tail and its NIC sends"
    for flow in plan.flows:
        if flow.receiver not in plan.targets:
            yield f"{flow.receiver} receives and is no target"
        if flow.over != path_kind(nodes[flow.sender], nodes[flow.receiver]):
            yield f"{flow.sender} does not reach {flow.receiver} over {flow.over}"


def _not_exactly_once(multicast: Multicast, plan: TransferPlan) -> Iterator[str]:
    lanes: dict[str, dict[int, list[Lane]]] = defaultdict(lambda: defaultdict(list))
    for flow in plan.flows:
        for block in flow.blocks:
            lanes[flow.receiver][block].append((flow.lane, flow.lanes))
    missing = {target.node.id: target.missing for target in multicast.targets}
    for target in plan.targets:
        if set(lanes[target]) != set(missing[target]):
            yield f"{target} misses blocks {sorted(missing[target])} and gets {sorted(lanes[target])}"
        for block, parts in lanes[target].items():
            if not _is_partition(parts):
                yield f"{target} gets block {block} in lanes {parts}"


def _is_partition(parts: Iterable[Lane]) -> bool:
    """Whether these lanes have every stripe once: lanes (i of n) and (j of m) share stripes where gcd(n, m) | i - j."""
    parts = list(parts)
    disjoint = all((i - j) % gcd(n, m) for (i, n), (j, m) in combinations(parts, 2))
    return disjoint and sum(Fraction(1, n) for _, n in parts) == 1


def _never_there(multicast: Multicast, plan: TransferPlan) -> Iterator[str]:
    """Flows that wait for each other in a circle, or for what their sender never has, arrive never."""
    stripes = lcm(*(flow.lanes for flow in plan.flows))
    whole = (1 << stripes) - 1
    for block in range(len(multicast.block_bytes)):
        flows = [flow for flow in plan.flows if block in flow.blocks]
        there = {source.node.id: whole for source in multicast.sources if block in source.blocks}
        for target in multicast.targets:
            if block not in target.missing:
                there[target.node.id] = whole
        while sum(_carry(flow, there, stripes) for flow in flows):
            pass
        late = {flow.receiver for flow in flows if there.get(flow.receiver) != whole}
        if late:
            yield f"block {block} never gets to {', '.join(sorted(late))}"


def _carry(flow: TransferFlow, there: dict[str, int], stripes: int) -> bool:
    """Give the receiver the flow's stripes that the sender has; whether any of them is new."""
    lane = sum(1 << stripe for stripe in range(flow.lane, stripes, flow.lanes))
    before = there.get(flow.receiver, 0)
    there[flow.receiver] = before | there.get(flow.sender, 0) & lane
    return there[flow.receiver] != before


def _against_serving(multicast: Multicast, plan: TransferPlan) -> Iterator[str]:
    nics = multicast.nics
    pruned = {(nics[node], direction) for node, direction in plan.pruned}
    for flow in plan.flows:
        if flow.over == "network" and (nics[flow.sender], "out") in pruned:
            yield f"{flow.sender} sends in the direction of serving traffic"
        if flow.over == "network" and (nics[flow.receiver], "in") in pruned:
            yield f"{flow.receiver} receives in the direction of serving traffic"


def _steps_out_of_order(multicast: Multicast, plan: TransferPlan) -> Iterator[str]:
    """In a schedule a node sends one flow's and receives one flow's blocks a step, and sends what came in before."""
    arrived = {(flow.receiver, block): step for flow in plan.flows for block, step in _steps(flow)}
    partners: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    for flow in plan.flows:
        if flow.steps and (len(flow.steps) != len(flow.blocks) or list(flow.steps) != sorted(flow.steps)):
            yield f"{flow.sender} -> {flow.receiver}: steps {flow.steps} of blocks {flow.blocks}"
        for block, step in _steps(flow):
            partners[flow.sender, "sends to", step].add(flow.receiver)
            partners[flow.receiver, "receives from", step].add(flow.sender)
            if arrived.get((flow.sender, block), -1) >= step:
                yield f"{flow.sender} sends block {block} in step {step}, before it has it"
    for (node, does, step), others in partners.items():
        if len(others) > 1:
            yield f"{node} {does} {sorted(others)} in step {step}"


def _steps(flow: TransferFlow) -> Iterator[tuple[int, int]]:
    return zip(flow.blocks, flow.steps, strict=False)


def plan_checked_chains(
    topology: Topology,
    holders: list[str],
    targets: list[str],
    count: int = 0,
    disks: tuple[str, ...] = (),
    serving: tuple[ServingFlow, ...] = (),
) -> TransferPlan:
    """Plan chains from these holders to these targets, and check the plan."""
    multicast = multicast_over(topology, BLOCKS, holders, targets, count=count, disks=disks, serving=serving)
    made = plan_chains(multicast)
    check_plan(multicast, made)
    return made
