"""LambdaScale's multicast (4.2): k sources, each of which feeds a sub-group by a binomial pipeline. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil, log2
from typing import TypeVar

from msgspec import structs

from livescale.services.planner.plans.draft import Draft, in_leaf_order
from livescale.services.planner.plans.execution_pipelines import plan_replicas
from livescale.services.planner.plans.groups import Group, gather_all, one_per_nic, ring_from, sending_order
from livescale.services.planner.plans.plan import ClusterNode, Multicast, TransferFlow, TransferPlan, path_kind
from livescale.services.planner.plans.schedule import schedule

MOST_BLOCKS = 64  # in which a model is multicast

BlockRun = tuple[int, ...]  # blocks of the model that are sent as one
# More blocks are not worth it where they save less than this share of the time.
ELBOW = 0.02
T = TypeVar("T")


def plan_binomial(multicast: Multicast, sources: int = 0, blocks: int = 0, block_seconds: float = 0.0) -> TransferPlan:
    """Plan a multicast with k-way transmission (LambdaScale 4.2). Raises CannotPlan.

    It is from at most `sources` nodes (0: all there are), in `blocks` (0: the elbow, by what a block was measured to
    cost). One GPU of a domain takes part, and the others follow in the domain (LambdaScale 4.3, case 3).
    """
    draft = Draft(multicast)
    groups = choose_groups(draft, draft.feed_near())
    draft.flows, members = stagger(draft.groups, draft.flows)
    pipelines = list(plan_replicas(members))
    roots = choose_roots(draft, groups)
    if groups:
        count = choose_sub_groups(len(groups), min(len(roots), sources or len(roots)))
        pipelines += plan_replicas(schedule_groups(draft, roots[:count], groups, blocks, block_seconds))
    return draft.result("binomial", pipelines)


def schedule_groups(
    draft: Draft, roots: Sequence[ClusterNode], groups: Sequence[Group], blocks: int, block_seconds: float
) -> list[list[list[str]]]:
    """Plan a sub-group for each root. Returns the nodes of each sub-group by domain, the one that takes part first."""
    roots, sub_groups = deal_groups(roots, groups)
    largest = 1 + max(map(len, sub_groups))
    rate = min(node.bandwidth for node in (*roots, *(group.nodes[0] for group in groups)))
    runs = cut_blocks(draft.multicast, rate, (len(roots), largest), blocks, block_seconds)
    draft.note(
        f"{len(roots)} sub-groups of at most {largest} nodes, {len(runs)} blocks, "
        f"{len(runs) + ceil(log2(largest)) - 1} steps"
    )
    members = []
    for number, (root, sub_group) in enumerate(zip(roots, sub_groups, strict=True)):
        nodes = [draft.take_part(group) for group in sub_group]
        flows = scheduled_flows([root, *nodes], sub_group, transfer_order(runs, len(roots), number))
        for group, node in zip(sub_group, nodes, strict=True):
            received = flows[node.id]
            steps = {block: step for flow in received for block, step in zip(flow.blocks, flow.steps, strict=True)}
            draft.add(group, [*received, *gather_all(node, group, order=steps)])
        domains = zip(nodes, sub_group, strict=True)
        members.append([[target.node.id for target in ring_from(node, group)] for node, group in domains])
    return members


def choose_groups(draft: Draft, far: Sequence[Group]) -> list[Group]:
    """Return as many groups as are wanted, those first that serving leaves free."""
    chosen: list[Group] = []
    left = draft.left
    for group in in_leaf_order(far, []) if left else ():
        chosen.append(group.first(left, draft.traffic))
        left -= len(chosen[-1].targets)
        if not left:
            break
    return chosen


def choose_roots(draft: Draft, groups: list[Group]) -> list[ClusterNode]:
    """Return the nodes that have everything, the fastest first, or the first group if none has, once it is put
    together."""
    roots = one_per_nic(sorted(draft.senders(), key=lambda node: sending_order(node, draft.traffic)))
    if roots or not groups:
        return list(roots)
    first = draft.reach(groups.pop(0))
    draft.assemble(first)
    return [draft.take_part(first)]


def choose_sub_groups(targets: int, most: int) -> int:
    """Choose how many sources to use: the fewest steps, then equal sub-groups, then the earliest first pipeline."""

    def order(count: int) -> tuple[int, bool, int]:
        return (ceil(targets / count)).bit_length(), targets % count > 0, -count

    return min(range(1, min(most, targets) + 1), key=order)


def deal_groups(roots: Sequence[ClusterNode], groups: Sequence[Group]) -> tuple[list[ClusterNode], list[list[Group]]]:
    """Deal groups to roots, those of a leaf together. Returns the roots in the order of their sub-groups, and these."""
    leaves = list(dict.fromkeys(root.at.leaf for root in roots))
    ordered = in_leaf_order(groups, leaves)
    size, rest = divmod(len(groups), len(roots))
    ends = [size * number + min(number, rest) for number in range(len(roots) + 1)]
    parts = [ordered[start:end] for start, end in pairwise(ends)]
    return sorted(roots, key=lambda root: leaves.index(root.at.leaf)), parts


def cut_blocks(
    multicast: Multicast, rate: float, sub_groups: tuple[int, int], blocks: int, block_seconds: float
) -> list[BlockRun]:
    """Cut the blocks that any target misses into runs that are sent as one.

    There is at least one for each sub-group, as each begins with another. `sub_groups`: how many there are, and how
    many nodes the largest has. `rate`: the slowest link in bytes a second.
    """
    count, largest = sub_groups
    missing = sorted({block for target in multicast.targets for block in target.missing})
    sizes = [multicast.block_bytes[block] for block in missing]
    if not blocks:
        besides = ceil(log2(largest)) - 1
        blocks = max(count, choose_count(besides, sum(sizes) / rate, block_seconds, min(MOST_BLOCKS, len(missing))))
    return [tuple(missing[index] for index in run) for run in group_blocks(sizes, blocks)]


def scheduled_flows(
    nodes: Sequence[ClusterNode], groups: Sequence[Group], order: Sequence[BlockRun]
) -> Mapping[str, list[TransferFlow]]:
    """Return the flows of one sub-group's schedule by receiver. Node 0 is the source; blocks that a node has are left
    out."""
    missing = {target.node.id: frozenset(target.missing) for group in groups for target in group.targets}
    flows: dict[str, list[TransferFlow]] = defaultdict(list)
    for (sender, receiver), sent in pair_up(len(nodes), len(order)).items():
        wanted = missing[nodes[receiver].id]
        pairs = [(block, step) for step, run in sent for block in order[run] if block in wanted]
        if pairs:
            blocks, steps = zip(*pairs, strict=True)
            over = path_kind(nodes[sender], nodes[receiver])
            flow = TransferFlow(nodes[sender].id, nodes[receiver].id, blocks, over=over, steps=steps)
            flows[flow.receiver].append(flow)
    return flows


@lru_cache(maxsize=64)
def pair_up(nodes: int, runs: int) -> Mapping[tuple[int, int], Sequence[tuple[int, int]]]:
    """Return the schedule by sender and receiver, as steps and runs of blocks."""
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for step, sender, receiver, run in schedule(nodes, runs):
        pairs[sender, receiver].append((step, run))
    return pairs


def choose_count(steps_besides: int, seconds: float, block_seconds: float, most: int) -> int:
    """Return the elbow: the fewest blocks whose multicast takes hardly longer than with the best number (LambdaScale
    4.2).

    T(b) = (b + steps_besides) * (seconds/b + block_seconds), with `seconds` for all bytes over one link and
    `block_seconds` measured for each block besides.
    """
    times = [(blocks + steps_besides) * (seconds / blocks + block_seconds) for blocks in range(1, most + 1)]
    good = min(times) * (1 + ELBOW)
    return next(index for index, time in enumerate(times) if time <= good) + 1


def transfer_order(things: Sequence[T], ways: int, number: int) -> list[T]:
    """Return things in the order of a sub-group (LambdaScale 4.2, Algorithm 1).

    Chunks of equal size are shifted in a circle, so that each of the `ways` sub-groups begins with another one.
    """
    size = ceil(len(things) / ways)
    chunks = [things[size * way : size * (way + 1)] for way in range(ways)]
    return [thing for way in range(ways) for thing in chunks[(number + way) % ways]]


def group_blocks(sizes: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Return blocks in `count` runs of about equal bytes. No run is empty, so there are no more than blocks."""
    count = min(count, len(sizes))
    ends = list(accumulate(sizes))
    runs: list[tuple[int, ...]] = []
    start = 0
    for run in range(1, count + 1):
        last = len(sizes) - (count - run)  # leave one for each of the others
        aim = ends[-1] * run / count
        end = start + 1
        while end < last and abs(ends[end] - aim) <= abs(ends[end - 1] - aim):
            end += 1
        runs.append(tuple(range(start, last if run == count else end)))
        start = end
    return runs


def stagger(groups: Sequence[Group], flows: Sequence[TransferFlow]) -> tuple[list[TransferFlow], list[list[list[str]]]]:
    """Return the flows of a warm start (LambdaScale 5), and the nodes that begin with each part of the model, by
    domain.

    Hosts that load their own copies begin with different parts, in k-way circular orders: between them they have the
    whole model long before each has. A node that is fed by another target keeps to that one's order.
    """
    home = {node.id: number for number, group in enumerate(groups) for node in group.nodes}
    begins_with: list[list[list[str]]] = []
    way_of: dict[int, int] = {}
    for flow in flows:  # in the order in which groups were planned: a feeder comes before those that it feeds
        group, fed_by = home[flow.receiver], home.get(flow.sender)
        if group not in way_of:
            if fed_by is None:
                begins_with.append([])
            way_of[group] = len(begins_with) - 1 if fed_by is None else way_of[fed_by]
            begins_with[way_of[group]].append([node.id for node in groups[group].nodes])
    orders = [tuple(transfer_order(flow.blocks, len(begins_with), way_of[home[flow.receiver]])) for flow in flows]
    return [structs.replace(flow, blocks=order) for flow, order in zip(flows, orders, strict=True)], begins_with
