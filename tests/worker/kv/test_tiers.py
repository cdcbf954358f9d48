"""Where the prefix cache keeps segments: which blocks are free, which hold least."""

from livescale.services.worker.kv.block_manager import BlockManager
from livescale.services.worker.kv.radix_tree import RadixNode
from livescale.services.worker.kv.tiers import BlockTiers

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
