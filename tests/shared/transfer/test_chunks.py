"""Chunk sizes, tags, and the map of chunks: pure arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.transfer.chunks import MIB, ChunkMap, chunk_bytes_for, chunk_tag, cut

sizes_of_blocks = st.lists(st.integers(0, 40), max_size=6)


@pytest.mark.parametrize(
    ("rate", "mib"), [(0.0, 16), (1e6, 1), (100e6, 1), (157.4e6, 2), (400e6, 4), (1e9, 10), (1e12, 16)]
)
def test_a_chunk_is_ten_milliseconds_of_the_link_between_1_and_16_mib(rate: float, mib: int) -> None:
    assert chunk_bytes_for(rate) == mib * MIB


@given(sizes_of_blocks, st.integers(1, 30))
def test_chunks_cover_every_byte_once_and_in_order(sizes: list[int], chunk_bytes: int) -> None:
    chunks = cut(sizes, chunk_bytes)
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert [(chunk.block, chunk.index) for chunk in chunks] == sorted((chunk.block, chunk.index) for chunk in chunks)
    for block, size in enumerate(sizes):
        own = [chunk for chunk in chunks if chunk.block == block]
        assert [byte for c in own for byte in range(c.offset, c.offset + c.size)] == list(range(size))
        assert [chunk.index for chunk in own] == list(range(len(own)))
        assert all(0 < chunk.size <= chunk_bytes for chunk in own)


def test_a_chunk_size_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="chunk_bytes must be positive, not 0"):
        cut([1], 0)


@given(st.data(), sizes_of_blocks, st.integers(1, 30))
def test_a_block_is_whole_exactly_when_its_last_chunk_came(
    data: st.DataObject, sizes: list[int], chunk_bytes: int
) -> None:
    chunks = cut(sizes, chunk_bytes)
    here = ChunkMap(chunks, len(sizes))
    missing = [sum(chunk.block == block for chunk in chunks) for block in range(len(sizes))]
    for chunk in data.draw(st.permutations(chunks)):
        assert not here.has(chunk)
        here.add(chunk)
        assert here.has(chunk)
        missing[chunk.block] -= 1
        assert [here.is_whole(block) for block in range(len(sizes))] == [left == 0 for left in missing]


def test_a_chunk_that_comes_twice_is_refused() -> None:
    chunks = cut([10], 5)
    here = ChunkMap(chunks, 1)
    here.add(chunks[1])
    with pytest.raises(ValueError, match="chunk 1 of block 0 came twice"):
        here.add(chunks[1])


parts = st.tuples(st.integers(0, 2**24 - 1), st.integers(0, 2**16 - 1), st.integers(0, 2**24 - 1))


@given(parts, parts)
def test_tags_differ_where_their_parts_do_and_have_64_bits(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    assert (chunk_tag(*one) == chunk_tag(*other)) == (one == other)
    assert 0 <= chunk_tag(*one) < 2**64


@pytest.mark.parametrize(
    ("parts", "message"),
    [((2**24, 0, 0), "ticket 16777216"), ((0, 2**16, 0), "block 65536"), ((0, 0, -1), "chunk -1")],
)
def test_parts_that_do_not_fit_a_tag_are_refused(parts: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"{message} does not fit"):
        chunk_tag(*parts)


def test_copies_of_one_model_share_their_chunks() -> None:
    assert cut([5, 7], 3) is cut((5, 7), 3)
    assert cut([5, 7], 3) != cut([7, 5], 3)
