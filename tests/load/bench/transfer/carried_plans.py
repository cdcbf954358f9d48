"""A plan as a bench has carried it out."""

from livescale.load.bench.transfer.fleet import CarriedPlan
from livescale.load.bench.transfer.multicast import flat
from livescale.services.planner.plans.make_plan import make_plan

RATE = 100e6
SIZES = [1_000_000] * 4


def carried(seconds: float, sources: int = 1) -> CarriedPlan:
    """Four blocks to four targets, each of which had its last one after so many seconds."""
    _, multicast = flat(4, sources, RATE, SIZES)
    plan = make_plan("binomial", multicast, sources=sources, blocks=4)
    return CarriedPlan(
        plan, {target: {block: seconds * (block + 1) / 4 for block in range(4)} for target in plan.targets}
    )
