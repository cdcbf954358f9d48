"""A transfer that broke off goes on from what arrived: no chunk of it is sent again, whoever sends the rest."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

import pytest

from shared.messages.parameters import Block
from shared.transfer.arrivals import Arrivals
from shared.transfer.part import Part, TransferFailed
from shared.transfer.patience import Patience
from shared.transfer.ready import ReadyBlocks
from shared.transfer.receive import receive_blocks
from shared.transfer.send import send_blocks
from tests.transfer.conftest import OpenPlaces, Place
from tests.transfer.test_transfer import CHUNK, SIZES, described, some_blocks

EVERY = range(len(SIZES))


class Target:
    """A receiver whose memory and arrivals outlive its transfers."""

    def __init__(self, place: Place, executor: Executor) -> None:
        self.memory = [bytearray(size) for size in SIZES]
        self.ready = ReadyBlocks()
        self.verified: list[int] = []
        self.place = place
        self.arrivals = Arrivals(part_of(place, 1, self.memory))
        self._executor = executor

    async def receive(self, ticket: int, upstream: Place, blocks: Sequence[Block], child: Place | None = None) -> None:
        await receive_blocks(
            self.place.link,
            part_of(self.place, ticket, self.memory, child),
            upstream.node,
            blocks,
            self._executor,
            on_first_byte=lambda: None,
            on_block=self._on_block,
            on_lost=lambda failure: None,
            arrivals=self.arrivals,
        )

    def _on_block(self, index: int) -> None:
        self.verified.append(index)
        self.ready.add(index)


def part_of(place: Place, ticket: int, memory: Sequence[bytearray], child: Place | None = None) -> Part:
    views = [memoryview(block) for block in memory]
    downstream = [] if child is None else [child.node]
    return Part(place.node.id, ticket, CHUNK, views, downstream, Patience(first=5.0))


def sending(
    source: Place, ticket: int, memory: Sequence[bytearray], child: Place, ready: ReadyBlocks
) -> asyncio.Task[None]:
    return asyncio.create_task(send_blocks(source.link, part_of(source, ticket, memory, child), ready.wait_ready))


async def broken_off(*receiving: asyncio.Task[None], sent: asyncio.Task[None] | None = None) -> None:
    async with asyncio.timeout(3):
        results = await asyncio.gather(*receiving, return_exceptions=True)
    assert all(isinstance(result, TransferFailed) for result in results), results
    if sent is not None:
        sent.cancel()
        await asyncio.wait((sent,))


async def test_another_source_sends_only_what_is_missing(open_places: OpenPlaces, executor: Executor) -> None:
    first, second, place = await open_places(3)
    blocks, target = some_blocks(), Target(place, executor)
    sent = sending(first, 1, blocks, place, ReadyBlocks([0, 1, 2]))
    receiving = asyncio.create_task(target.receive(1, first, described(blocks)))
    await target.ready.wait_ready(2)
    await first.link.close()
    await broken_off(receiving, sent=sent)
    arrived = target.arrivals.received_bytes
    assert arrived >= sum(SIZES[:3])
    # Whoever has none of what arrived can send the rest.
    rest = [
        bytearray(size) if index < 3 else block for index, (size, block) in enumerate(zip(SIZES, blocks, strict=True))
    ]
    await asyncio.gather(
        sending(second, 2, rest, place, ReadyBlocks(EVERY)), target.receive(2, second, described(blocks))
    )
    assert target.memory == blocks
    assert target.verified == list(EVERY)
    assert target.arrivals.received_bytes == sum(SIZES)


async def test_within_a_block_the_chunks_that_arrived_stay(open_places: OpenPlaces, executor: Executor) -> None:
    first, second, place = await open_places(3)
    blocks, target = some_blocks(), Target(place, executor)
    halves = asyncio.Event()

    class HalfOfTheLast(ReadyBlocks):
        """A source that dies in the middle of the last block."""

        async def wait_ready(self, index: int) -> None:
            if index == 3 and target.arrivals.received_bytes > sum(SIZES[:3]) + 3 * CHUNK:
                halves.set()
                await asyncio.Event().wait()

    sent = sending(first, 1, blocks, place, HalfOfTheLast())
    receiving = asyncio.create_task(target.receive(1, first, described(blocks)))
    async with asyncio.timeout(5):
        await halves.wait()
    await first.link.close()
    await broken_off(receiving, sent=sent)
    assert sum(SIZES[:3]) + 3 * CHUNK <= target.arrivals.received_bytes < sum(SIZES)
    await asyncio.gather(
        sending(second, 2, blocks, place, ReadyBlocks(EVERY)), target.receive(2, second, described(blocks))
    )
    assert target.memory == blocks
    assert target.arrivals.received_bytes == sum(SIZES)


async def test_a_chain_whose_hop_is_bridged_sends_each_what_he_lacks(
    open_places: OpenPlaces, executor: Executor
) -> None:
    source, ahead, hop, behind = await open_places(4)
    blocks, ready = some_blocks(), ReadyBlocks([0])
    a, b, c = (Target(place, executor) for place in (ahead, hop, behind))
    expected = described(blocks)
    sent = sending(source, 1, blocks, ahead, ready)
    loads = [
        asyncio.create_task(a.receive(1, source, expected, hop)),
        asyncio.create_task(b.receive(1, ahead, expected, behind)),
        asyncio.create_task(c.receive(1, hop, expected)),
    ]
    await c.ready.wait_ready(0)
    await hop.link.close()
    await broken_off(*loads[1:])
    # The one ahead goes on receiving under the first ticket and passes on under the second what it has verified.
    bridge = sending(ahead, 2, a.memory, behind, a.ready)
    again = asyncio.create_task(c.receive(2, ahead, expected))
    for index in (1, 2, 3):
        ready.add(index)
    async with asyncio.timeout(5):
        await asyncio.gather(sent, loads[0], bridge, again)
    for target in (a, c):
        assert target.memory == blocks
        assert target.arrivals.received_bytes == sum(SIZES)


async def test_a_damaged_block_alone_comes_again(open_places: OpenPlaces, executor: Executor) -> None:
    bad, good, place = await open_places(3)
    blocks, target = some_blocks(), Target(place, executor)
    expected, damaged = described(blocks), some_blocks()
    damaged[2][0] ^= 1
    sent = sending(bad, 1, damaged, place, ReadyBlocks(EVERY))
    with pytest.raises(TransferFailed, match="block 2"):
        await target.receive(1, bad, expected)
    await asyncio.wait((sent,))
    sent.exception()
    assert target.arrivals.damaged == {2: 1}
    await asyncio.gather(sending(good, 2, blocks, place, ReadyBlocks(EVERY)), target.receive(2, good, expected))
    assert target.memory == blocks
    assert target.arrivals.received_bytes == sum(SIZES) + SIZES[2]


async def test_what_was_passed_on_damaged_is_dropped_before_the_rest_is_asked_for(
    open_places: OpenPlaces, executor: Executor
) -> None:
    source, place = await open_places(2)
    blocks, target = some_blocks(), Target(place, executor)
    part = part_of(place, 1, target.memory)
    for chunk in part.chunks:
        if chunk.block == 1:  # whole here, but nothing of it is right
            target.arrivals.add(chunk)
    await asyncio.gather(
        sending(source, 2, blocks, place, ReadyBlocks(EVERY)), target.receive(2, source, described(blocks))
    )
    assert target.memory == blocks
    assert target.arrivals.damaged == {1: 1}


async def test_a_transfer_that_is_aborted_leaves_another_between_the_same_two_alone(
    open_places: OpenPlaces, executor: Executor
) -> None:
    source, place = await open_places(2)
    blocks, ready = some_blocks(), ReadyBlocks([0])
    kept, dropped = Target(place, executor), Target(place, executor)
    expected = described(blocks)
    sends = [sending(source, ticket, blocks, place, ready) for ticket in (1, 2)]
    keeping = asyncio.create_task(kept.receive(1, source, expected))
    dropping = asyncio.create_task(dropped.receive(2, source, expected))
    await kept.ready.wait_ready(0)
    await dropped.ready.wait_ready(0)
    dropping.cancel()
    await asyncio.wait((dropping,))
    for index in (1, 2, 3):
        ready.add(index)
    async with asyncio.timeout(5):
        await asyncio.gather(keeping, sends[0])
    with pytest.raises(TransferFailed, match="the peer"):
        await sends[1]
    assert kept.memory == blocks
