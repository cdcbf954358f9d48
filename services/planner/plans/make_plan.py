"""Plans a multicast by the policy of a given name. Pure."""

from typing import assert_never

from livescale.services.planner.plans.baselines import plan_fanout, plan_local, plan_ring, plan_tree
from livescale.services.planner.plans.binomial import plan_binomial
from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.network import Multicast
from livescale.services.planner.plans.plan import CannotPlan, Policy, TransferPlan


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
