"""Serial forwarding chains (BlitzScale 5.1, Fig. 11): greedy, within leaves, in lanes, around serving traffic. Pure.

Where the figure cannot be meant to the letter: lines 1 and 2 sort by bandwidth without a direction (decreasing, says
the text); line 7 adds D_tmp where it must move the leaf's sources to the front; line 8 pops until the popped ones
suffice, not the remaining; and by line 10 alone a leaf would have one chain whatever sources it has (see `add_tail`).
"""

from livescale.services.planner.plans.draft import Draft, in_leaf_order
from livescale.services.planner.plans.groups import Group, choose_lanes, shard
from livescale.services.planner.plans.network import Multicast
from livescale.services.planner.plans.plan import TransferPlan
from livescale.services.planner.plans.source_order import SourceOrder


def plan_chains(multicast: Multicast) -> TransferPlan:
    """Raises CannotPlan."""
    draft = Draft(multicast)
    far = draft.feed_near()
    sources = SourceOrder(draft.senders(), draft.traffic)  # line 1
    for group in in_leaf_order(far, sources.leaves):  # line 2
        if not draft.left:  # line 4
            break
        feed(draft.reach(group), sources, draft)
    return draft.result("chains")


def feed(group: Group, sources: SourceOrder, draft: Draft) -> None:
    """Lines 5 to 10."""
    senders = sources.take(group.bandwidth, group.leaf, lambda node: not draft.interferes(node, group))
    if senders:
        draft.keep_near(senders, group)
        out, into = (node.bandwidth for node in senders), (port.at.nic_in for port in group.ports)
        lanes = choose_lanes(tuple(out), tuple(into))
        sources.give_back(senders[lanes:])
        senders = senders[:lanes]
        draft.add(group, shard(senders, group.ports, group, lanes))
    else:
        draft.assemble(group)
    # Those who feed a group that cannot pass on have to send again.
    sources.add_tail(group.forwarders or senders)
