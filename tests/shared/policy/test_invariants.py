"""A broken invariant is named; a state that was broken by hand shows that the check runs."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.gateway import progress
from livescale.services.planner import running_scale, targets
from livescale.services.registry import leases
from livescale.services.registry.leases import Leases, LeaseTimes
from livescale.services.router import requests
from livescale.services.worker.instance import lifecycle as worker
from livescale.services.worker.kv.block_manager import BlockManager
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Join
from livescale.shared.messages.transfers import Drain, Load, Serve
from livescale.shared.policy.invariants import InvariantBroken, StateMachine, check
from tests.worker.instance.test_lifecycle import DRAIN, LOAD, SERVE


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


MACHINES: dict[str, StateMachine[Any]] = {
    "worker": worker.MOVES,
    "instance": targets.MOVES,
    "request at the gateway": progress.MOVES,
    "request at the router": requests.MOVES,
    "scale": running_scale.MOVES,
    "lease": leases.MOVES,
}
FIRST = {
    "worker": "spare",
    "instance": "commanded",
    "request at the gateway": "new",
    "request at the router": "waiting",
    "scale": "planned",
    "lease": "alive",
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_move_that_is_not_in_the_table_is_an_error(name: str) -> None:
    moves = MACHINES[name]
    for old, new in product(moves.table, moves.table):
        if new in moves.table[old]:
            assert moves.advance(old, new) == new
        else:
            with pytest.raises(ValueError, match=f"{moves.what} cannot go from {old} to {new}"):
                moves.advance(old, new)


@pytest.mark.parametrize("name", MACHINES)
def test_every_state_can_be_reached_and_has_a_row(name: str) -> None:
    table = MACHINES[name].table
    reached, new = set[str](), {FIRST[name]}
    while new:
        reached |= new
        new = set().union(*(table[state] for state in new)) - reached
    assert reached == set(table)


commands = st.lists(
    st.one_of(
        st.sampled_from([LOAD, SERVE, DRAIN]),
        st.tuples(st.sampled_from(["plan-1", "plan-2"]), st.integers(0, 2)),
        st.sampled_from(["release", "abort"]),
    )
)


@given(commands)
def test_a_worker_has_what_its_state_says_whatever_it_is_told(told: list[Any]) -> None:
    life = worker.Lifecycle()
    for command in told:
        try:
            match command:
                case Load():
                    life.load(command)
                case Serve():
                    life.serve(command)
                case Drain():
                    life.drain(command)
                case "release":
                    life.release()
                case "abort":
                    if life.aborts("plan-1"):
                        life.release()
                case (plan, index):
                    life.block_ready(plan, index)
        except Refusal:
            pass
        life.check_invariants()
