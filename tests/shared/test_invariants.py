"""A broken invariant is named; a state that was spoilt by hand shows that somebody looks."""

import pytest

from services.registry.leases import Leases, LeaseTimes
from services.worker.engine.kv_blocks import KvBlocks
from shared.invariants import InvariantBroken, check
from shared.messages.membership import Join


def test_everything_that_is_broken_is_named() -> None:
    check([])
    with pytest.raises(InvariantBroken, match="this; and that"):
        check(["this", "and that"])


def test_a_block_with_two_owners_or_none_is_seen() -> None:
    kv = KvBlocks(10)
    kv.allocate("a", 3)
    kv.allocate("b", 3)
    kv.check_invariants()
    kv._owned["b"] = range(2, 6)
    with pytest.raises(InvariantBroken, match="a ends at 3, b begins at 2"):
        kv.check_invariants()
    del kv._owned["b"]
    with pytest.raises(InvariantBroken, match="a ends at 3, free begins at 6"):
        kv.check_invariants()


def test_an_epoch_that_was_given_twice_is_seen() -> None:
    leases = Leases(LeaseTimes())
    for id in ("a", "b"):
        leases.join(Join(service="worker", id=id, pid=1, host="box"), now=0.0)
    leases.check_invariants()
    leases._leases["b"].member = leases._leases["a"].member
    with pytest.raises(InvariantBroken, match="share epoch 1"):
        leases.check_invariants()
