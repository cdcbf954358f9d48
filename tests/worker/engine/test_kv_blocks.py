"""Properties of the KV allocator: one owner a block, one stretch an owner, nothing leaks, first fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.engine.kv_blocks import KvBlocks

TOTAL = 24
# Owner by number: one that owns nothing asks for so many blocks, one that owns some gives them back.
ACTIONS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 12)), max_size=60)


@given(ACTIONS)
def test_a_block_has_one_owner_and_nothing_leaks(actions: list[tuple[int, int]]) -> None:
    kv = KvBlocks(TOTAL)
    owned: dict[str, range] = {}
    for number, count in actions:
        owner = str(number)
        if owner in owned:
            assert kv.owned(owner) == owned.pop(owner)
            kv.free(owner)
        else:
            taken = {block for blocks in owned.values() for block in blocks}
            blocks = kv.allocate(owner, count)
            assert blocks == _first_fit(taken, count)
            if blocks is not None:
                owned[owner] = blocks
        assert kv.used == sum(map(len, owned.values()))
        kv.check_invariants()
    for owner in owned:
        kv.free(owner)
    assert kv.used == 0
    assert kv.allocate("all", TOTAL) == range(TOTAL)


def _first_fit(taken: set[int], count: int) -> range | None:
    for start in range(TOTAL - count + 1):
        if taken.isdisjoint(range(start, start + count)):
            return range(start, start + count)
    return None


def test_an_owner_is_served_once() -> None:
    kv = KvBlocks(4)
    kv.allocate("a", 1)
    with pytest.raises(ValueError, match="a already owns"):
        kv.allocate("a", 1)


def test_asking_for_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="one is the least"):
        KvBlocks(4).allocate("a", 0)


def test_freeing_what_is_not_owned_is_an_error() -> None:
    with pytest.raises(KeyError):
        KvBlocks(4).free("a")


def test_no_blocks_at_all_serve_nobody() -> None:
    assert KvBlocks(0).allocate("a", 1) is None
