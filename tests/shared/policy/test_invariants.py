"""A broken invariant is named; a state that was broken by hand shows that the check runs."""

import pytest

from livescale.services.registry.leases import Leases, LeaseTimes
from livescale.services.worker.kv.block_manager import BlockManager
from livescale.shared.messages.membership import Join
from livescale.shared.policy.invariants import InvariantBroken, check


def test_everything_that_is_broken_is_named() -> None:
    check([])
    with pytest.raises(InvariantBroken, match="this; and that"):
        check(["this", "and that"])


def test_a_block_with_two_owners_and_an_owner_unknown_are_seen() -> None:
    kv = BlockManager(10)
    kv.place("a", 3, most=4)
    kv.place("b", 3, most=4)
    kv.check_invariants()
    stretch = kv._of["b"]
    stretch.blocks = range(2, 6)
    with pytest.raises(InvariantBroken, match="a ends at 3, b begins at 2"):
        kv.check_invariants()
    stretch.blocks = range(9, 11)
    with pytest.raises(InvariantBroken, match="b ends at 11, the end begins at 10"):
        kv.check_invariants()
    del kv._of["b"]
    with pytest.raises(InvariantBroken, match="the stretches are not those of the owners"):
        kv.check_invariants()


def test_an_epoch_that_was_given_twice_is_seen() -> None:
    leases = Leases(LeaseTimes())
    for id in ("a", "b"):
        leases.join(Join(service="worker", id=id, pid=1, host="box"), now=0.0)
    leases.check_invariants()
    leases._leases["b"].member = leases._leases["a"].member
    with pytest.raises(InvariantBroken, match="share epoch 1"):
        leases.check_invariants()
