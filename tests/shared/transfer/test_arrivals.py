"""What is here of a model, whichever sender it came from."""

import asyncio

import pytest

from livescale.shared.links.contract import checksum
from livescale.shared.runtime.waiting import BlocksLost
from livescale.shared.transfer.arrivals import ChunkArrivals
from livescale.shared.transfer.flow_end import ModelCopy


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
