"""Sparse memory: copies of a block are the block, whatever the order of its parts, and anything else is not."""

from random import Random

import pytest

from livescale.shared.links.contract import checksum
from livescale.shared.memory.arena import ArenaFull
from livescale.shared.simulation.sparse_memory import SparseArena, SparseBytes

SIZE, CHUNK = 10_000_003_072, 1_234_567_891
PARTS = [slice(start, min(start + CHUNK, SIZE)) for start in range(0, SIZE, CHUNK)]


def read(content: bytes = b"a") -> SparseBytes:
    block = SparseBytes.of(SIZE)
    block.fill(content)
    return block


def copied(source: SparseBytes, parts: list[slice]) -> SparseBytes:
    target = SparseBytes.of(SIZE)
    for part in parts:
        target[part].put(source[part].copy())
    return target


def test_a_block_that_came_in_parts_in_any_order_is_the_block() -> None:
    for seed in range(20):
        parts = Random(seed).sample(PARTS, len(PARTS))
        again = copied(copied(read(), parts), PARTS)
        assert checksum(again) == checksum(read())
        assert len(again.copy().extents) == 1


@pytest.mark.parametrize("missing", [0, 4, len(PARTS) - 1])
def test_a_block_with_a_part_missing_or_damaged_is_another(missing: int) -> None:
    lacking = copied(read(), [part for part in PARTS if part is not PARTS[missing]])
    assert checksum(lacking) != checksum(read())
    damaged = read()
    damaged[PARTS[missing]][:1].fill(b"damage")
    assert checksum(damaged) not in (checksum(lacking), checksum(read()))
    damaged[PARTS[missing]].put(read()[PARTS[missing]].copy())
    assert checksum(damaged) == checksum(read())


def test_a_copy_that_is_damaged_on_the_way_is_another() -> None:
    spoiled, copy = read(), read().copy()
    spoiled.put(copy.damaged())
    assert checksum(spoiled) != checksum(read())
    spoiled.put(copy)
    assert checksum(spoiled) == checksum(read())


def test_parts_in_each_others_places_are_another_block() -> None:
    one, other = PARTS[1], PARTS[2]
    swapped = read()
    swapped[one].put(read()[other].copy())
    swapped[other].put(read()[one].copy())
    assert checksum(swapped) != checksum(read())


def test_blocks_of_other_names_or_sizes_are_others() -> None:
    small = SparseBytes.of(SIZE - 1)
    small.fill(b"a")
    assert len({checksum(each) for each in (read(), read(b"b"), small, SparseBytes.of(SIZE))}) == 4


def test_an_arena_is_as_full_as_a_real_one() -> None:
    arena = SparseArena(SIZE)
    assert [view.nbytes for view in arena.place([SIZE // 2, SIZE // 4])] == [SIZE // 2, SIZE // 4]
    with pytest.raises(ArenaFull):
        arena.place([SIZE // 2])
    arena.clear()
    arena.place([SIZE])
