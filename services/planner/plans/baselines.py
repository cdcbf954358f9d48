"""The policies that chains and binomial pipelines are measured against. Pure.

They know nothing of leaves, and but for the local one nothing of serving traffic.
"""

from collections.abc import Callable

from livescale.services.planner.plans.draft import Draft, by_bandwidth, collect_parts, find_whole, name_some
from livescale.services.planner.plans.groups import NearCopies, group_targets, one_per_nic, sending_order
from livescale.services.planner.plans.plan import (
    CannotPlan,
    Multicast,
    Policy,
    Traffic,
    TransferFlow,
    TransferPlan,
    find_tails,
    path_kind,
)


def plan_tree(multicast: Multicast) -> TransferPlan:
    """Plan binary trees (FaaSNet): sources and targets stand in a row, and each passes on to two. Raises CannotPlan."""
    return plan_row(multicast, "tree", lambda index, sources: (index - sources) // 2)


def plan_fanout(multicast: Multicast) -> TransferPlan:
    """Plan flows from the sources to every target directly. Raises CannotPlan."""
    return plan_row(multicast, "fanout", lambda index, sources: index % sources)


def plan_ring(multicast: Multicast) -> TransferPlan:
    """Plan the broadcast of NCCL: one ring from the best source through all targets. Raises CannotPlan."""
    return plan_row(multicast, "ring", lambda index, sources: 0 if index == sources else index - 1)


def plan_row(multicast: Multicast, policy: Policy, parent_of: Callable[[int, int], int]) -> TransferPlan:
    """Plan a row of sources and then targets. Raises CannotPlan.

    `parent_of` returns the index of the node that sends to a node, from that node's index and the number of sources.
    """
    traffic = Traffic(multicast)
    sources = list(one_per_nic(sorted(find_whole(multicast), key=lambda node: sending_order(node, traffic))))
    targets = sorted(multicast.targets, key=lambda target: target.node.name)[: multicast.wanted]
    flows: list[TransferFlow] = []
    others = targets
    if not sources and targets:
        flows += collect_parts(multicast, targets[0], traffic)
        sources, others = [targets[0].node], targets[1:]
    row = [*sources, *(target.node for target in others)]
    for index, target in enumerate(others, len(sources)):
        parent = row[parent_of(index, len(sources))]
        flows.append(TransferFlow(parent.id, target.node.id, target.missing, over=path_kind(parent, target.node)))
    ids = tuple(target.node.id for target in targets)
    tails = find_tails(flows, ids, multicast.nics)
    reason = f"from {name_some(list(dict.fromkeys(flow.sender for flow in flows if flow.sender not in ids)))}"
    return TransferPlan(policy=policy, flows=tuple(flows), targets=ids, tails=tails, reasons=(reason,))


def plan_local(multicast: Multicast) -> TransferPlan:
    """Plan that each host loads its own copy, from its memory or else its disk, those with a copy in memory first
    (ServerlessLLM). Raises CannotPlan."""
    draft = Draft(multicast)
    needed = frozenset().union(*(target.missing for target in multicast.targets))
    whole = [source.node for source in multicast.sources if source.blocks >= needed and source.node.place != "worker"]
    near = NearCopies(whole, 0.0, draft.traffic)
    warm = {node.machine for node in whole if node.place == "host"}
    without = []
    groups = sorted(group_targets(multicast.targets, draft.traffic), key=by_bandwidth)
    for group in sorted(groups, key=lambda group: group.nodes[0].machine not in warm):
        if not draft.left:
            break
        part = group.first(draft.left, draft.traffic)
        if flows := near.feed(part):
            draft.keep_used(flows)
            draft.add(part, flows)
        else:
            without += [node.id for node in part.nodes]
    if without:
        draft.note(f"the hosts of {name_some(without)} have no copy")
    if draft.left == multicast.wanted:
        raise CannotPlan(f"the hosts of {name_some(without)} have no copy in memory or on disk")
    return draft.result("local")
