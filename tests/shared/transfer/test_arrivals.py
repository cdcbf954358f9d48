"""What is here of a model, whichever sender it came from."""

import asyncio
import random

import pytest
import xxhash

from livescale.shared.links.contract import checksum
from livescale.shared.transfer.arrivals import BlockDigest, ChunkArrivals
from livescale.shared.transfer.flow_end import BlocksLost, ModelCopy

SIZE, PIECE = 1000, 30


class Written:
    """A block that is written with its digest, and how many bytes were hashed while they came."""

    def __init__(self) -> None:
        self.digest = BlockDigest()
        self.memory = bytearray(SIZE)

    def write(self, start: int, stop: int, seed: int = 0, *, shows: bool = True) -> None:
        """Write [start, stop), piece by piece; `shows`: over a link that shows pieces."""
        add = self.digest.write(start)
        source = random.Random(seed * SIZE + start)
        for at in range(start, stop, PIECE):
            size = min(PIECE, stop - at)
            self.memory[at : at + size] = source.randbytes(size)
            if shows:
                add(memoryview(self.memory)[at : at + size])

    def is_right(self) -> bool:
        return self.digest.of(memoryview(self.memory)) == xxhash.xxh3_64_intdigest(self.memory)


@pytest.mark.parametrize(
    "parts",
    [
        [(0, SIZE)],
        [(0, 300), (300, 600), (600, SIZE)],
        [(600, SIZE), (0, 300), (300, 600)],
        [(0, 300), (600, SIZE), (300, 600)],
    ],
    ids=str,
)
@pytest.mark.parametrize("shows", ["all", "none", "the first", "the last"])
def test_bytes_may_come_in_any_order_over_any_link(parts: list[tuple[int, int]], shows: str) -> None:
    block = Written()
    for number, (start, stop) in enumerate(parts):
        told = {"all": True, "none": False, "the first": number == 0, "the last": number == len(parts) - 1}[shows]
        block.write(start, stop, shows=told)
    assert block.is_right()


def test_the_checksum_is_known_once_all_bytes_were_hashed_as_they_came() -> None:
    block = Written()
    block.write(0, 600)
    assert not block.digest.is_known(memoryview(block.memory))
    block.write(600, SIZE)
    assert block.digest.is_known(memoryview(block.memory))
    assert block.is_right()


@pytest.mark.parametrize("shows", [True, False])
def test_bytes_that_are_written_again_count_as_they_are_then(shows: bool) -> None:
    block = Written()
    block.write(0, 300)
    block.write(300, 450)  # and the flow breaks off within the chunk
    block.write(300, 600, seed=1, shows=shows)
    block.write(600, SIZE)
    assert block.is_right()


@pytest.mark.parametrize("again", [0, 300])
def test_a_block_that_came_damaged_is_hashed_anew(again: int) -> None:
    block = Written()
    for _ in range(2):
        block.write(again, again + 300)
        block.write(300 - again, 600 - again)
        block.write(600, SIZE)
        assert block.is_right()
        block.memory[:] = bytes(SIZE)


def test_who_writes_further_on_while_the_beginning_is_written_again_adds_nothing_wrong() -> None:
    block = Written()
    block.write(0, 300)
    add = block.digest.write(300)
    block.write(0, 300, seed=1)
    block.memory[300:600] = b"x" * 300
    add(memoryview(block.memory)[300:600])
    block.write(600, SIZE)
    assert block.is_right()


def two_blocks() -> tuple[ModelCopy, ChunkArrivals]:
    copy = ModelCopy("node", 1024, [memoryview(bytearray(2048)), memoryview(bytearray(1024))])
    return copy, ChunkArrivals(copy)


def test_a_chunk_is_asked_for_along_one_flow_at_a_time() -> None:
    copy, arrivals = two_blocks()
    first = arrivals.claim(copy.chunks[:2], ticket=1)
    assert first == copy.chunks[:2]
    assert arrivals.claim(copy.chunks, ticket=2) == copy.chunks[2:]
    arrivals.add(copy.chunks[0], ticket=1)
    arrivals.unclaim(1)
    assert arrivals.claim(copy.chunks, ticket=3) == copy.chunks[1:2]


async def test_a_damaged_block_comes_again_and_those_who_brought_it_are_known() -> None:
    copy, arrivals = two_blocks()
    for ticket, chunk in enumerate(copy.chunks[:2]):
        arrivals.add(chunk, ticket)
    assert await arrivals.whole() == 0
    assert not arrivals.settled
    assert arrivals.forget(0) == {0, 1}
    assert arrivals.settled
    assert arrivals.claim(copy.chunks, ticket=5) == copy.chunks
    assert arrivals.damaged[0] == 1


async def test_what_will_never_come_is_an_error_for_those_who_wait() -> None:
    copy, arrivals = two_blocks()
    arrivals.add(copy.chunks[2], ticket=1, shared=True)
    waiting = asyncio.create_task(arrivals.here(copy.chunks[0]))
    await asyncio.sleep(0)
    arrivals.lose("the plan is over")
    with pytest.raises(BlocksLost, match="block 0: the plan is over"):
        await waiting
    await arrivals.here(copy.chunks[2])
    assert (arrivals.received_bytes, arrivals.shared_bytes) == (0, 1024)


async def test_who_waits_for_a_chunk_is_woken_by_that_one_alone() -> None:
    copy, arrivals = two_blocks()
    waiting = arrivals.here(copy.chunks[0])
    woken = waiting.send(None)  # as a task does, which goes on once this is done
    arrivals.add(copy.chunks[1], ticket=1)
    arrivals.add(copy.chunks[2], ticket=1)
    assert not woken.done()
    arrivals.add(copy.chunks[0], ticket=1)
    assert woken.done()
    with pytest.raises(StopIteration):
        waiting.send(None)


def test_a_checksum_is_of_the_bytes_alone() -> None:
    assert checksum(memoryview(b"abc")) == checksum(memoryview(b"xabcx")[1:4])
    assert checksum(memoryview(b"abc")) != checksum(memoryview(b"abd"))
