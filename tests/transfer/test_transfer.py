"""The executor over real links: chains, corruption, late blocks, lost nodes, abort."""

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import Executor

import pytest
import xxhash

from shared.messages.parameters import Block
from shared.transfer.part import Part, TransferFailed
from shared.transfer.patience import Patience
from shared.transfer.ready import BlocksLost, ReadyBlocks
from shared.transfer.receive import receive_blocks
from shared.transfer.send import send_blocks
from tests.transfer.conftest import OpenPlaces, Place

SIZES = [300_001, 4096, 1, 1_000_000]
CHUNK = 65_536
TICKET = 7


def some_blocks(sizes: Sequence[int] = SIZES, seed: int = 1) -> list[bytearray]:
    source = random.Random(seed)
    return [bytearray(source.randbytes(size)) for size in sizes]


def described(blocks: Sequence[bytearray]) -> list[Block]:
    return [
        Block(index=i, name=f"block.{i}", size_bytes=len(b), checksum=xxhash.xxh3_64_intdigest(b), tensors=[])
        for i, b in enumerate(blocks)
    ]


def part_of(place: Place, memory: Sequence[bytearray], downstream: Sequence[Place] = (), first: float = 5.0) -> Part:
    return Part(
        node=place.node.id,
        ticket=TICKET,
        chunk_bytes=CHUNK,
        memory=[memoryview(block) for block in memory],
        downstream=[child.node for child in downstream],
        patience=Patience(first=first),
    )


class Target:
    """A receiver and what it was told."""

    def __init__(self, place: Place, executor: Executor, downstream: Sequence[Place] = ()) -> None:
        self.memory = [bytearray(size) for size in SIZES]
        self.seen: list[object] = []
        self.verified = ReadyBlocks()
        self.lost: list[TransferFailed] = []
        self._place = place
        self._executor = executor
        self._part = part_of(place, self.memory, downstream)

    async def receive(self, upstream: Place, blocks: Sequence[Block]) -> None:
        await receive_blocks(
            self._place.link,
            self._part,
            upstream.node,
            blocks,
            self._executor,
            on_first_byte=lambda: self.seen.append("first byte"),
            on_block=self._on_block,
            on_lost=self.lost.append,
        )

    def _on_block(self, index: int) -> None:
        self.seen.append(index)
        self.verified.add(index)


async def test_a_chain_of_three_hops_delivers_every_block(open_places: OpenPlaces, executor: Executor) -> None:
    places = await open_places(4)
    blocks = some_blocks()
    targets = [Target(places[i], executor, places[i + 1 : i + 2]) for i in (1, 2, 3)]
    source = send_blocks(places[0].link, part_of(places[0], blocks, places[1:2]), ReadyBlocks(range(4)).wait_ready)
    await asyncio.gather(source, *(t.receive(places[i], described(blocks)) for i, t in enumerate(targets)))
    for target in targets:
        assert target.memory == blocks
        assert target.seen == ["first byte", 0, 1, 2, 3]
        assert target.lost == []


async def test_a_wrong_checksum_fails_the_transfer_naming_the_block(
    open_places: OpenPlaces, executor: Executor
) -> None:
    source, place = await open_places(2)
    blocks = some_blocks()
    expected = described(blocks)
    blocks[2][0] ^= 1
    target = Target(place, executor)
    sending = asyncio.create_task(
        send_blocks(source.link, part_of(source, blocks, [place]), ReadyBlocks(range(4)).wait_ready)
    )
    with pytest.raises(TransferFailed, match=r"block 2 \(block\.2\) has checksum") as caught:
        await target.receive(source, expected)
    assert (caught.value.node, caught.value.peer) == ("worker-1", "worker-0")
    assert target.seen == ["first byte", 0, 1]
    await asyncio.wait((sending,))
    sending.exception()


async def test_blocks_are_sent_as_they_become_ready(open_places: OpenPlaces, executor: Executor) -> None:
    source, place = await open_places(2)
    blocks, ready, target = some_blocks(), ReadyBlocks(), Target(place, executor)
    sending = asyncio.create_task(send_blocks(source.link, part_of(source, blocks, [place]), ready.wait_ready))
    receiving = asyncio.create_task(target.receive(source, described(blocks)))
    for index in (1, 0, 2, 3):
        assert index not in target.seen
        ready.add(index)
        if index == 0:
            await target.verified.wait_ready(1)
    await asyncio.gather(sending, receiving)
    assert target.memory == blocks


async def test_a_source_that_cannot_have_a_block_fails_and_its_child_learns_at_once(
    open_places: OpenPlaces, executor: Executor
) -> None:
    source, place = await open_places(2)
    blocks, ready, target = some_blocks(), ReadyBlocks([0]), Target(place, executor)
    receiving = asyncio.create_task(target.receive(source, described(blocks)))
    sending = asyncio.create_task(send_blocks(source.link, part_of(source, blocks, [place]), ready.wait_ready))
    await target.verified.wait_ready(0)
    ready.lose("the disk does not answer")
    with pytest.raises(BlocksLost, match="block 1: the disk does not answer"):
        await sending
    async with asyncio.timeout(2):
        with pytest.raises(TransferFailed, match="the peer"):
            await receiving


async def test_a_lost_child_does_not_stop_its_parent(open_places: OpenPlaces, executor: Executor) -> None:
    source, place, gone = await open_places(3)
    await gone.link.close()
    blocks, target = some_blocks(), Target(place, executor, [gone])
    sending = send_blocks(source.link, part_of(source, blocks, [place]), ReadyBlocks(range(4)).wait_ready)
    await asyncio.gather(sending, target.receive(source, described(blocks)))
    assert target.memory == blocks
    assert [(failure.node, failure.peer) for failure in target.lost] == [("worker-1", "worker-2")]


async def test_a_child_lost_in_the_middle_does_not_stop_its_parent(open_places: OpenPlaces, executor: Executor) -> None:
    source, place, child = await open_places(3)
    blocks, ready = some_blocks(), ReadyBlocks([0])
    parent, last = Target(place, executor, [child]), Target(child, executor)
    work = asyncio.gather(
        send_blocks(source.link, part_of(source, blocks, [place]), ready.wait_ready),
        parent.receive(source, described(blocks)),
        last.receive(place, described(blocks)),
        return_exceptions=True,
    )
    await last.verified.wait_ready(0)
    await child.link.close()
    for index in (1, 2, 3):
        ready.add(index)
    async with asyncio.timeout(5):
        sent, received, failed = await work
    assert (sent, received) == (None, None)
    assert isinstance(failed, TransferFailed)
    assert parent.memory == blocks
    assert [failure.peer for failure in parent.lost] == ["worker-2"]


async def test_a_source_reports_the_child_it_lost_after_it_served_the_others(
    open_places: OpenPlaces, executor: Executor
) -> None:
    source, place, gone = await open_places(3)
    await gone.link.close()
    blocks, target = some_blocks(), Target(place, executor)
    sending = send_blocks(source.link, part_of(source, blocks, [gone, place]), ReadyBlocks(range(4)).wait_ready)
    sent, received = await asyncio.gather(sending, target.receive(source, described(blocks)), return_exceptions=True)
    assert isinstance(sent, TransferFailed)
    assert sent.peer == "worker-2"
    assert received is None
    assert target.memory == blocks


async def test_an_abort_in_the_middle_of_a_chain_ends_both_neighbours_and_leaves_no_task(
    open_places: OpenPlaces, executor: Executor
) -> None:
    places = await open_places(3)
    before = asyncio.all_tasks()
    blocks, ready = some_blocks(), ReadyBlocks([0])
    middle, last = Target(places[1], executor, [places[2]]), Target(places[2], executor)
    sending = asyncio.create_task(
        send_blocks(places[0].link, part_of(places[0], blocks, places[1:2]), ready.wait_ready)
    )
    receiving = asyncio.create_task(middle.receive(places[0], described(blocks)))
    ending = asyncio.create_task(last.receive(places[1], described(blocks)))
    await last.verified.wait_ready(0)
    receiving.cancel()
    for index in (1, 2, 3):
        ready.add(index)
    async with asyncio.timeout(2):
        results = await asyncio.gather(sending, receiving, ending, return_exceptions=True)
    assert [type(result) for result in results] == [TransferFailed, asyncio.CancelledError, TransferFailed]
    await asyncio.sleep(0.05)
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()


async def test_a_second_transfer_after_an_abort_reaches_the_same_nodes(
    open_places: OpenPlaces, executor: Executor
) -> None:
    source, place = await open_places(2)
    blocks = some_blocks()
    for attempt in range(4):
        ready, target = ReadyBlocks([0]), Target(place, executor)
        work = asyncio.gather(
            send_blocks(source.link, part_of(source, blocks, [place]), ready.wait_ready),
            target.receive(source, described(blocks)),
            return_exceptions=True,
        )
        await target.verified.wait_ready(0)
        if attempt < 3:
            work.cancel()
            await asyncio.wait((work,))
            continue
        for index in (1, 2, 3):
            ready.add(index)
        assert await work == [None, None]
        assert target.memory == blocks


async def test_a_silent_source_is_given_up_within_the_patience(open_places: OpenPlaces, executor: Executor) -> None:
    source, place = await open_places(2)
    memory = [bytearray(size) for size in SIZES]
    part = part_of(place, memory, first=0.2)
    with pytest.raises(TransferFailed, match=r"took more than 0\.2 s"):
        await receive_blocks(
            place.link,
            part,
            source.node,
            described(memory),
            executor,
            on_first_byte=lambda: None,
            on_block=lambda index: None,
            on_lost=lambda failure: None,
        )


async def test_a_source_that_has_nothing_to_send_gives_its_child_up_within_the_patience(
    open_places: OpenPlaces, executor: Executor
) -> None:
    source, place = await open_places(2)
    blocks, target = some_blocks(), Target(place, executor)
    sending = send_blocks(source.link, part_of(source, blocks, [place], first=0.2), ReadyBlocks([0]).wait_ready)
    receiving = asyncio.create_task(target.receive(source, described(blocks)))
    with pytest.raises(TransferFailed, match="what it waits for is not here in time"):
        await sending
    with pytest.raises(TransferFailed):
        await receiving
    assert target.seen == ["first byte", 0]


async def test_memory_of_another_size_than_the_block_is_refused(open_places: OpenPlaces, executor: Executor) -> None:
    source, place = await open_places(2)
    with pytest.raises(ValueError, match="block 1 has 4095 bytes, its memory 4096"):
        await Target(place, executor).receive(source, described([bytearray(n) for n in (300_001, 4095, 1, 1_000_000)]))
