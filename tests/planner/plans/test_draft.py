"""A plan in the making: models of which no node has all blocks are put together."""

import pytest

from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.plan import CannotPlan, TransferFlow
from tests.planner.plans.clusters import EVERY, SIX, parts
from tests.planner.plans.plan_checks import check_plan


class TestParts:
    def test_a_model_that_no_node_has_whole_is_put_together_and_sent_on(self) -> None:
        multicast = parts(SIX, {"h0/0": {0, 1}, "h1/0": {2, 3}}, {"h2/0": EVERY, "h3/0": EVERY})
        made = plan_chains(multicast)
        check_plan(multicast, made)
        assert made.flows == (
            TransferFlow("h0/0", "h2/0", (0, 1)),
            TransferFlow("h1/0", "h2/0", (2, 3)),
            TransferFlow("h2/0", "h3/0", EVERY),
        )

    def test_only_what_is_missing_is_sent(self) -> None:
        multicast = parts(SIX, {"h0/0": EVERY}, {"h1/0": (3,), "h2/0": (1, 2, 3)})
        made = plan_chains(multicast)
        check_plan(multicast, made)
        assert made.flows == (TransferFlow("h0/0", "h1/0", (3,)), TransferFlow("h1/0", "h2/0", (1, 2, 3)))

    def test_the_disk_gives_only_what_no_memory_has(self) -> None:
        multicast = parts(SIX, {"h0/0": {0, 1, 2}}, {"h1/0": EVERY}, disks=["h2"])
        assert plan_chains(multicast).flows == (
            TransferFlow("h0/0", "h1/0", (0, 1, 2)),
            TransferFlow("h2", "h1/0", (3,)),
        )

    def test_two_that_were_cut_off_complete_each_other(self) -> None:
        multicast = parts(SIX, {"h1/0": {0, 1}, "h2/0": {2, 3}}, {"h1/0": (2, 3), "h2/0": (0, 1)})
        made = plan_chains(multicast)
        check_plan(multicast, made)
        assert made.flows == (TransferFlow("h2/0", "h1/0", (2, 3)), TransferFlow("h1/0", "h2/0", (0, 1)))

    def test_a_block_that_nobody_holds_is_named(self) -> None:
        with pytest.raises(CannotPlan, match="no node holds blocks 2 of 4"):
            plan_chains(parts(SIX, {"h0/0": {0, 1, 3}}, {"h1/0": EVERY}))
