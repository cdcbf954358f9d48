"""A flow that broke off is replaced by another: no chunk that arrived is sent again, whichever node sends the rest."""

import asyncio

import pytest

from livescale.shared.transfer.flow_end import ReadyBlocks
from tests.shared.transfer.transfer_peer import CHUNK, SIZES, OpenPeers, chain, described, flow, some_blocks


async def test_another_source_sends_only_what_is_missing(open_peers: OpenPeers) -> None:
    first, second, target = peers = await open_peers(3)
    blocks = some_blocks()
    first.hold(blocks, ReadyBlocks([0, 1, 2]))
    # A node that has none of what arrived can send the rest.
    second.hold([bytearray(size) if i < 3 else blocks[i] for i, size in enumerate(SIZES)])
    flows = [flow(1, first, target), flow(2, second, target)]
    receiving = target.receive(described(blocks), flows[0], to=peers)
    first.send(*flows, to=peers)
    await asyncio.wait_for(target.verified.wait_ready(2), 60)
    await first.link.close()
    await asyncio.wait_for(target.lost.wait(), 60)
    assert sum(SIZES[:3]) <= target.received_bytes < sum(SIZES)
    target.follow(flows[1], to=peers)
    second.send(*flows, to=peers)
    async with asyncio.timeout(60):
        await receiving
    assert target.memory == blocks
    assert target.seen == ["first byte", 0, 1, 2, 3]
    assert target.received_bytes == sum(SIZES)


async def test_flows_of_who_took_the_plan_over_have_a_secret_of_their_own(open_peers: OpenPeers) -> None:
    first, second, target = peers = await open_peers(3)
    blocks = some_blocks()
    first.hold(blocks, ReadyBlocks([0, 1]))
    second.hold(blocks)
    flows = [flow(1, first, target), flow(2, second, target)]
    receiving = target.receive(described(blocks), flows[0], to=peers)
    first.send(*flows, to=peers)
    await asyncio.wait_for(target.verified.wait_ready(1), 60)
    target.secret = second.secret = b"of the next planner"
    target.follow(flows[1], to=peers)
    second.send(*flows, to=peers)
    async with asyncio.timeout(60):
        await receiving
    assert target.memory == blocks
    assert target.broken == []


async def test_within_a_block_the_chunks_that_arrived_stay(open_peers: OpenPeers) -> None:
    first, second, target = peers = await open_peers(3)
    blocks, halves = some_blocks(), asyncio.Event()

    class HalfOfTheLast(ReadyBlocks):
        """A source that dies in the middle of the last block."""

        async def wait_ready(self, index: int) -> None:
            if index == 3 and target.received_bytes > sum(SIZES[:3]) + 3 * CHUNK:
                halves.set()
                await asyncio.Event().wait()

    first.hold(blocks, HalfOfTheLast())
    second.hold(blocks)
    flows = [flow(1, first, target), flow(2, second, target)]
    receiving = target.receive(described(blocks), flows[0], to=peers)
    first.send(*flows, to=peers)
    await asyncio.wait_for(halves.wait(), 60)
    await first.link.close()
    await asyncio.wait_for(target.lost.wait(), 60)
    assert sum(SIZES[:3]) + 3 * CHUNK <= target.received_bytes < sum(SIZES)
    target.follow(flows[1], to=peers)
    second.send(*flows, to=peers)
    async with asyncio.timeout(60):
        await receiving
    assert target.memory == blocks
    assert target.received_bytes == sum(SIZES)


async def test_a_chain_whose_hop_is_bridged_sends_each_what_he_lacks(open_peers: OpenPeers) -> None:
    source, ahead, hop, behind = peers = await open_peers(4)
    blocks, ready = some_blocks(), ReadyBlocks([0])
    source.hold(blocks, ready)
    flows, bridge = chain(*peers), flow(9, ahead, behind)
    receiving = [peer.receive(described(blocks), *flows, to=peers) for peer in (ahead, hop, behind)]
    for peer in peers:
        peer.send(*flows, to=peers)
    await asyncio.wait_for(behind.verified.wait_ready(0), 60)
    await hop.link.close()
    await asyncio.wait_for(behind.lost.wait(), 60)
    # The one ahead goes on receiving, and passes on to the one behind what it has.
    behind.follow(bridge, to=peers)
    ahead.send(bridge, to=peers)
    for index in (1, 2, 3):
        ready.add(index)
    async with asyncio.timeout(60):
        await asyncio.gather(receiving[0], receiving[2])
    for target in (ahead, behind):
        assert target.memory == blocks
        assert target.received_bytes == sum(SIZES)
    receiving[1].cancel()
    await asyncio.wait(receiving)


async def test_a_damaged_block_alone_comes_again(open_peers: OpenPeers) -> None:
    bad, good, target = peers = await open_peers(3)
    blocks, damaged = some_blocks(), some_blocks()
    damaged[2][0] ^= 1
    bad.hold(damaged)
    good.hold(blocks)
    flows = [flow(1, bad, target), flow(2, good, target)]
    receiving = target.receive(described(blocks), flows[0], to=peers)
    bad.send(*flows, to=peers)
    await asyncio.wait_for(target.lost.wait(), 60)
    assert target.incoming is not None
    assert target.incoming.arrivals.damaged == {2: 1}
    target.follow(flows[1], to=peers)
    good.send(*flows, to=peers)
    async with asyncio.timeout(60):
        await receiving
    assert target.memory == blocks
    assert target.received_bytes == sum(SIZES) + SIZES[2]


async def test_a_block_that_comes_damaged_twice_fails_everything(open_peers: OpenPeers) -> None:
    bad, worse, target = peers = await open_peers(3)
    blocks, damaged = some_blocks(), some_blocks()
    damaged[0][7] ^= 1
    bad.hold(damaged)
    worse.hold(damaged)
    flows = [flow(1, bad, target), flow(2, worse, target)]
    receiving = target.receive(described(blocks), flows[0], to=peers)
    bad.send(*flows, to=peers)
    await asyncio.wait_for(target.lost.wait(), 60)
    target.follow(flows[1], to=peers)
    worse.send(*flows, to=peers)
    async with asyncio.timeout(60):
        [error] = await asyncio.gather(receiving, return_exceptions=True)
    assert "block 0 (block.0) has checksum" in str(error)


async def test_a_flow_that_is_replaced_leaves_another_between_the_same_two_alone(open_peers: OpenPeers) -> None:
    source, target = peers = await open_peers(2)
    blocks, ready = some_blocks(), ReadyBlocks()
    source.hold(blocks, ready)
    kept, dropped = flow(1, source, target, blocks=[0, 1]), flow(2, source, target, blocks=[2, 3])
    receiving = target.receive(described(blocks), kept, dropped, to=peers)
    source.send(kept, dropped, to=peers)
    again = flow(3, source, target, blocks=[2, 3])
    target.follow(kept, again, to=peers)
    source.send(again, to=peers)
    for index in range(4):
        ready.add(index)
    async with asyncio.timeout(60):
        await receiving
    assert target.memory == blocks
    assert target.broken == []
    assert target.received_bytes == sum(SIZES)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "replaced"])
async def test_an_earlier_command_that_comes_again_ends_no_later_flow(kept: bool, open_peers: OpenPeers) -> None:
    source, target = peers = await open_peers(2)
    blocks, ready = some_blocks(), ReadyBlocks([2])
    source.hold(blocks, ready)
    earlier, rest = flow(1, source, target, blocks=[0, 1]), flow(2, source, target, blocks=[2, 3])
    later = [earlier, rest] if kept else [flow(3, source, target, blocks=[2, 3, 0, 1])]
    receiving = target.receive(described(blocks), earlier, to=peers)
    target.follow(*later, to=peers)
    source.send(*later, to=peers)
    await asyncio.wait_for(target.verified.wait_ready(2), 60)
    target.follow(earlier, to=peers)
    for index in (0, 1, 3):
        ready.add(index)
    async with asyncio.timeout(60):
        await receiving
    assert target.memory == blocks
    assert target.broken == []
