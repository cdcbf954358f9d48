"""Properties of the KV allocator: one owner a block, one stretch an owner, and soft places only where none is free."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livescale.services.worker.kv.block_manager import GROWTH, BlockManager, BlockTiers, Stretch
from livescale.services.worker.kv.radix_tree import RadixNode
from livescale.shared.policy.invariants import InvariantBroken

TOTAL = 24
# Owner by number: one that owns nothing asks for so many blocks of so many more, one that owns some grows or goes.
ACTIONS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(1, 12), st.integers(0, 20), st.booleans()), min_size=40, max_size=80
)


def owned_blocks(kv: BlockManager, *except_for: str) -> set[int]:
    return {block for owner in kv.owners - set(except_for) for block in kv.owned(owner)}


class Model:
    """What an allocator must do, told by what it did."""

    def __init__(self) -> None:
        self.kv = BlockManager(TOTAL)
        self.most: dict[str, int] = {}

    def place(self, owner: str, count: int, most: int) -> None:
        taken = owned_blocks(self.kv)
        in_the_way = taken | {
            block
            for one, limit in self.most.items()
            for block in range(self.kv.owned(one).start, self.start(one) + limit)
        }
        own = first_fit(in_the_way, most)
        blocks = self.kv.place(owner, count, most)
        if blocks is None:
            assert own is None
            return
        assert len(blocks) == count
        assert taken.isdisjoint(blocks)
        assert 0 <= blocks.start < blocks.stop <= TOTAL
        if own is not None:
            assert blocks.start == own.start, "with room for all of it, it is placed as if nobody ever gave way"
        self.most[owner] = most

    def start(self, owner: str) -> int:
        return self.kv.owned(owner).start

    def grow(self, owner: str) -> None:
        blocks = self.kv.owned(owner)
        if len(blocks) == self.most[owner]:
            return
        met = self.kv.grow(owner)
        if met is None:
            assert self.kv.owned(owner) == range(blocks.start, blocks.stop + 1)
            return
        assert self.kv.owned(owner) == blocks
        assert (self.start(met) == blocks.stop) if met != owner else (blocks.stop == TOTAL)

    def free(self, owner: str) -> None:
        self.kv.free(owner)
        del self.most[owner]


def first_fit(taken: set[int], count: int) -> range | None:
    for start in range(TOTAL - count + 1):
        if taken.isdisjoint(range(start, start + count)):
            return range(start, start + count)
    return None


@settings(max_examples=200)
@given(ACTIONS)
def test_a_block_has_one_owner_and_nothing_leaks(actions: list[tuple[int, int, int, bool]]) -> None:
    model = Model()
    for number, count, more, grows in actions:
        owner = str(number)
        if owner not in model.most:
            model.place(owner, count, min(count + more, TOTAL))
        elif grows:
            model.grow(owner)
        else:
            model.free(owner)
        model.kv.check_invariants()
        assert model.kv.owners == model.most.keys()
        assert model.kv.used == len(owned_blocks(model.kv))
    for owner in list(model.most):
        model.free(owner)
    assert model.kv.used == 0
    assert model.kv.place("all", 1, TOTAL) == range(1)


def placed(*asked: tuple[str, int, int]) -> BlockManager:
    kv = BlockManager(TOTAL)
    for owner, count, most in asked:
        assert kv.place(owner, count, most) is not None
    return kv


@pytest.mark.parametrize(
    ("asked", "count", "most", "expected"),
    [
        ([], 2, 24, range(2)),
        ([("a", 2, 8)], 2, 16, range(8, 10)),
        ([("a", 2, 24)], 2, 4, range(20, 22)),  # as far from a as it can be
        ([("a", 2, 24)], 2, 24, range(12, 14)),  # in the middle: a grows, and so will it
        ([("a", 2, 10)], 2, 24, range(10, 12)),  # a ends before the middle
        ([("a", 2, 24), ("b", 2, 24)], 2, 24, range(6, 8)),  # between a and b, or behind b: the first of equals
        ([("a", 2, 24)], 18, 24, None),  # it and a could grow by 2 blocks each, less than a quarter of it
        ([("a", 2, 24)], 14, 24, range(6, 20)),
        ([("a", 20, 24)], 4, 4, None),  # a needs the very next block
        ([("a", 20, 20)], 4, 4, range(20, 24)),
        ([("a", 20, 20)], 5, 5, None),
    ],
)
def test_a_newcomer_has_a_place_of_its_own_or_the_middle_of_the_longest_stretch(
    asked: list[tuple[str, int, int]], count: int, most: int, expected: range | None
) -> None:
    assert placed(*asked).place("new", count, most) == expected


def test_a_newcomer_can_grow_by_a_part_of_what_it_has_before_two_stretches_meet() -> None:
    kv = placed(("a", 4, 24), ("b", 4, 24))
    for owner in ("a", "b"):
        for _ in range(4 // GROWTH):
            assert kv.grow(owner) is None


def test_where_two_meet_or_the_cache_ends_nothing_changes() -> None:
    kv = placed(("a", 12, 24), ("b", 4, 24))
    assert kv.owned("b") == range(16, 20)
    assert [kv.grow("a") for _ in range(5)] == [None] * 4 + ["b"]
    assert [kv.grow("b") for _ in range(5)] == [None] * 4 + ["b"]
    assert (kv.owned("a"), kv.owned("b")) == (range(16), range(16, 24))
    kv.free("b")
    assert kv.grow("a") is None


def test_just_these_blocks_are_given_where_nobody_has_or_had_any_of_them() -> None:
    kv = BlockManager(20)
    assert kv.claim("b", range(8, 12), 6) == range(8, 12)
    assert [kv.claim("c", blocks, 8) for blocks in (range(11, 13), range(4, 9), range(17, 21), range(7, 13))] == [
        None
    ] * 4
    assert kv.claim("c", range(12, 14), 2) == range(12, 14)
    assert kv.claim("a", range(4, 8), 8) == range(4, 8)
    kv.check_invariants()
    assert (kv.grow("a"), kv.grow("b"), kv.grow("c")) == ("b", "c", None)
    for owner in "abc":
        kv.free(owner)
    assert kv.claim("a", range(14, 16), 2) is None, "somebody grew into it"
    assert kv.claim("a", range(15, 16), 2) == range(15, 16)


def test_an_owner_is_placed_once() -> None:
    with pytest.raises(ValueError, match="a already owns"):
        placed(("a", 1, 1)).place("a", 1, 1)


@pytest.mark.parametrize("count", [0, 3])
def test_asking_for_nothing_or_for_more_than_the_most_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="1 is the least"):
        BlockManager(4).place("a", count, 2)


def test_freeing_what_is_not_owned_is_an_error() -> None:
    with pytest.raises(KeyError):
        BlockManager(4).free("a")


def test_no_blocks_at_all_serve_nobody() -> None:
    assert BlockManager(0).place("a", 1, 1) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"blocks": range(3, 6)}, "a ends at 4, b begins at 3"),
        ({"blocks": range(20, 30)}, "b ends at 30, the end begins at 24"),
        ({"blocks": range(9, 9)}, "b owns range"),
        ({"reach": 9}, "b owns range.* and may have all before 9"),
        ({"owner": "c"}, "not those of the owners"),
    ],
)
def test_whatever_is_broken_is_found(change: dict[str, Any], message: str) -> None:
    kv = placed(("a", 4, 8), ("b", 2, 16))
    b: Stretch = kv._stretches[1]
    for name, value in change.items():
        setattr(b, name, value)
    with pytest.raises(InvariantBroken, match=message):
        kv.check_invariants()


def test_blocks_in_which_something_was_put_are_not_claimed() -> None:
    kv = BlockManager(8)
    kv.put(range(4, 6))
    assert kv.claim("a", range(3, 5), 2) is None
    assert kv.claim("a", range(2, 4), 2) == range(2, 4)


BLOCKS = 12


def places(*kept: int, owned: int = 0, host_blocks: int = 0) -> BlockTiers:
    """Something is kept in these; the first `owned` blocks have an owner."""
    kv = BlockManager(BLOCKS)
    if owned:
        kv.place("owner", owned, owned)
    made = BlockTiers(kv, host_blocks)
    for block in kept:
        made.put(RadixNode(None, (block,)), block)
    return made


def test_free_is_what_nobody_owns_and_nothing_is_kept_in_the_last_first() -> None:
    assert list(places(11, 8, owned=6).free(in_host=True)) == [10, 9, 7, 6]


def test_memory_of_the_host_comes_last_and_only_where_it_is_used() -> None:
    made = places(11, -2, owned=10, host_blocks=3)
    assert list(made.free(in_host=True)) == [10, -1, -3]
    assert list(made.free(in_host=False)) == [10]
    assert made.is_free(-1, in_host=True)
    assert not made.is_free(-1, in_host=False)
    assert not made.is_free(-2, in_host=True)


def test_what_is_lent_is_not_free() -> None:
    made = places(owned=8)
    made.lent = range(9, 11)
    assert list(made.free(in_host=False)) == [11, 8]
    assert not made.is_free(10, in_host=False)


def test_what_is_lifted_lies_nowhere_and_its_block_is_free() -> None:
    made = places(11, -1, owned=11, host_blocks=1)
    for block in (11, -1):
        node = made.lift(block)
        assert not made.holds(node)
    assert list(made.free(in_host=True)) == [11, -1]


def test_blocks_in_a_row_are_found_where_the_least_is_kept() -> None:
    assert places(0, 1, 2, 3, 9, 10, 11).least_kept(4) == range(4, 8)
    assert places(owned=9).least_kept(4) is None


def test_what_is_nowhere_or_in_a_block_that_somebody_owns_is_noticed() -> None:
    assert list(places(11).broken([])) == ["prefix cache: the blocks in use are not those of the segments"]
    made, node = places(owned=4), RadixNode(None, (3,))
    made.put(node, 3)
    assert list(made.broken([node])) == ["prefix cache: something is kept in the blocks [3], which are owned"]
