"""The checks of plans find what must not be."""

import pytest
from msgspec import structs

from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.plan import TransferFlow, TransferPlan, multicast_over
from livescale.shared.policy.invariants import InvariantBroken
from tests.planner.plans.clusters import BLOCKS, EVERY, cluster, machine, singles
from tests.planner.plans.plan_checks import check_plan

MULTICAST = multicast_over(cluster(*singles(2), machine("d", 3)), BLOCKS, ["h0/0"], ["h1/0", "d/0", "d/1"], count=3)


def of(*flows: TransferFlow, targets: tuple[str, ...] = ("h1/0", "d/0"), tails: tuple[str, ...] = ()) -> TransferPlan:
    return TransferPlan(policy="chains", flows=flows, targets=targets, tails=tails)


GOOD = of(TransferFlow("h0/0", "h1/0", EVERY), TransferFlow("h1/0", "d/0", EVERY), tails=("d/0",))
HALF, REST = TransferFlow("h0/0", "h1/0", EVERY, 0, 2), TransferFlow("h0/0", "h1/0", EVERY, 1, 2)
FIRST = TransferFlow("h0/0", "h1/0", EVERY)


def test_a_plan_as_it_should_be() -> None:
    check_plan(MULTICAST, GOOD)
    check_plan(MULTICAST, of(HALF, REST, targets=("h1/0",)))
    check_plan(MULTICAST, plan_chains(MULTICAST))


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (of(FIRST), r"d/0 misses blocks \[0, 1, 2, 3\] and gets \[\]"),
        (of(FIRST, targets=()), "h1/0 receives and is no target"),
        (
            of(FIRST, TransferFlow("h0/0", "h1/0", (1,)), targets=("h1/0",)),
            r"h1/0 gets block 1 in lanes \[\(0, 1\), \(0, 1\)\]",
        ),
        (of(HALF, targets=("h1/0",)), r"h1/0 gets block 0 in lanes \[\(0, 2\)\]"),
        (of(HALF, HALF, targets=("h1/0",)), r"in lanes \[\(0, 2\), \(0, 2\)\]"),
        (of(HALF, TransferFlow("h0/0", "h1/0", EVERY, 2, 4), targets=("h1/0",)), r"in lanes \[\(0, 2\), \(2, 4\)\]"),
        (of(TransferFlow("d/0", "h1/0", EVERY), TransferFlow("h1/0", "d/0", EVERY)), "block 0 never gets to d/0, h1/0"),
        (of(TransferFlow("d/1", "h1/0", EVERY), targets=("h1/0",)), "block 3 never gets to h1/0"),
        (structs.replace(GOOD, tails=("h1/0",)), "h1/0 is a tail and its NIC sends"),
        (structs.replace(GOOD, tails=("h0/0",)), "a tail is no target"),
        (structs.replace(GOOD, targets=(*GOOD.targets, "d/0")), "3 targets, 2 of them different"),
        (structs.replace(GOOD, pruned=(("h1/0", "out"),)), "h1/0 sends in the direction of serving traffic"),
        (structs.replace(GOOD, pruned=(("h1/0", "in"),)), "h1/0 receives in the direction of serving traffic"),
        (
            of(TransferFlow("h0/0", "h1/0", EVERY, over="domain"), targets=("h1/0",)),
            "h0/0 does not reach h1/0 over domain",
        ),
    ],
)
def test_what_must_not_be_is_named(plan: TransferPlan, problem: str) -> None:
    with pytest.raises(InvariantBroken, match=problem):
        check_plan(MULTICAST, plan)


@pytest.mark.parametrize(
    ("one", "other", "problem"),
    [
        ((0, 1, 2, 3), (0, 1, 2, 3), r"h0/0 sends to \['d/0', 'h1/0'\] in step 0"),
        ((0, 1, 2, 1), (4, 5, 6, 7), r"h0/0 -> h1/0: steps \(0, 1, 2, 1\)"),
    ],
)
def test_in_a_step_a_node_sends_one_block(one: tuple[int, ...], other: tuple[int, ...], problem: str) -> None:
    plan = of(TransferFlow("h0/0", "h1/0", EVERY, steps=one), TransferFlow("h0/0", "d/0", EVERY, steps=other))
    with pytest.raises(InvariantBroken, match=problem):
        check_plan(MULTICAST, plan)


def test_no_node_sends_a_block_in_the_step_in_which_it_arrives() -> None:
    steps = (0, 1, 2, 3)
    plan = of(TransferFlow("h0/0", "h1/0", EVERY, steps=steps), TransferFlow("h1/0", "d/0", EVERY, steps=steps))
    with pytest.raises(InvariantBroken, match="h1/0 sends block 0 in step 0, before it has it"):
        check_plan(MULTICAST, plan)
