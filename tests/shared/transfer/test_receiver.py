"""The executor over real links: chains, corruption, late blocks, lost nodes, abort."""

import asyncio
import itertools

import pytest

from livescale.shared.bus.contract import Refusal
from livescale.shared.transfer.flow_end import FlowEnd, ReadyBlocks, TransferFailed
from livescale.shared.transfer.sender import send_chunks
from tests.shared.transfer.transfer_peer import (
    EVERY,
    PLAN,
    SIZES,
    OpenPeers,
    carry_out,
    chain,
    described,
    flow,
    some_blocks,
)


async def test_a_chain_of_three_hops_delivers_every_block(open_peers: OpenPeers) -> None:
    peers, blocks = await open_peers(4), some_blocks()
    peers[0].hold(blocks)
    await carry_out(chain(*peers), peers, described(blocks))
    for target in peers[1:]:
        assert target.memory == blocks
        assert target.seen == ["first byte", 0, 1, 2, 3]
        assert target.broken == []


async def test_a_wrong_checksum_breaks_the_flow_naming_the_block(open_peers: OpenPeers) -> None:
    source, target = peers = await open_peers(2)
    blocks = some_blocks()
    expected = described(blocks)
    blocks[2][0] ^= 1
    source.hold(blocks)
    receiving = target.receive(expected, *chain(source, target), to=peers)
    source.send(*chain(source, target), to=peers)
    await asyncio.wait_for(target.lost.wait(), 60)
    [(ticket, failure)] = target.broken
    assert ticket == 1
    assert "block 2 (block.2) has checksum" in failure.reason
    assert (failure.node, failure.peer) == ("worker-1", "worker-0")
    assert target.seen[:3] == ["first byte", 0, 1]
    receiving.cancel()
    await asyncio.wait((receiving,))


async def test_blocks_are_sent_as_they_become_ready(open_peers: OpenPeers) -> None:
    source, target = peers = await open_peers(2)
    blocks, ready = some_blocks(), ReadyBlocks()
    source.hold(blocks, ready)
    receiving = target.receive(described(blocks), *chain(*peers), to=peers)
    source.send(*chain(*peers), to=peers)
    for index in (1, 0, 2, 3):
        assert index not in target.seen
        ready.add(index)
        if index == 0:
            await asyncio.wait_for(target.verified.wait_ready(1), 60)
    await receiving
    assert target.memory == blocks


async def test_a_source_that_cannot_have_a_block_ends_and_its_receiver_learns_at_once(
    open_peers: OpenPeers,
) -> None:
    source, target = peers = await open_peers(2)
    blocks, ready = some_blocks(), ReadyBlocks([0])
    source.hold(blocks, ready)
    receiving = target.receive(described(blocks), *chain(*peers), to=peers)
    source.send(*chain(*peers), to=peers)
    await asyncio.wait_for(target.verified.wait_ready(0), 60)
    ready.lose("the disk does not answer")
    async with asyncio.timeout(60):
        await source.outgoing.none.wait()
        await target.lost.wait()
    assert "the peer" in target.broken[0][1].reason
    receiving.cancel()
    await asyncio.wait((receiving,))


async def test_a_lost_child_does_not_stop_its_parent(open_peers: OpenPeers) -> None:
    source, target, gone = peers = await open_peers(3)
    await gone.link.close()
    blocks = some_blocks()
    source.hold(blocks)
    flows = chain(*peers)
    receiving = target.receive(described(blocks), *flows, to=peers)
    for peer in peers:
        peer.send(*flows, to=peers)
    await receiving
    assert target.memory == blocks
    async with asyncio.timeout(60):
        await target.outgoing.none.wait()


async def test_a_child_lost_in_the_middle_does_not_stop_its_parent(open_peers: OpenPeers) -> None:
    source, parent, child = peers = await open_peers(3)
    blocks, ready = some_blocks(), ReadyBlocks([0])
    source.hold(blocks, ready)
    flows = chain(*peers)
    receiving = [peer.receive(described(blocks), *flows, to=peers) for peer in (parent, child)]
    for peer in peers:
        peer.send(*flows, to=peers)
    await asyncio.wait_for(child.verified.wait_ready(0), 60)
    await child.link.close()
    for index in (1, 2, 3):
        ready.add(index)
    async with asyncio.timeout(60):
        await receiving[0]
        await child.lost.wait()
    assert parent.memory == blocks
    receiving[1].cancel()
    await asyncio.wait(receiving)


async def test_a_source_serves_the_others_when_one_is_lost(open_peers: OpenPeers) -> None:
    source, target, gone = peers = await open_peers(3)
    await gone.link.close()
    blocks = some_blocks()
    source.hold(blocks)
    flows = [flow(1, source, gone), flow(2, source, target)]
    receiving = target.receive(described(blocks), *flows, to=peers)
    source.send(*flows, to=peers)
    async with asyncio.timeout(60):
        await receiving
        await source.outgoing.none.wait()
    assert target.memory == blocks


async def test_an_abort_in_the_middle_of_a_chain_ends_both_neighbours_and_leaves_no_task(
    open_peers: OpenPeers,
) -> None:
    source, middle, last = peers = await open_peers(3)
    before = asyncio.all_tasks()
    blocks, ready = some_blocks(), ReadyBlocks([0])
    source.hold(blocks, ready)
    flows = chain(*peers)
    receiving = [peer.receive(described(blocks), *flows, to=peers) for peer in (middle, last)]
    for peer in peers:
        peer.send(*flows, to=peers)
    await asyncio.wait_for(last.verified.wait_ready(0), 60)
    receiving[0].cancel()
    middle.outgoing.abort(PLAN)
    for index in (1, 2, 3):
        ready.add(index)
    async with asyncio.timeout(60):
        await source.outgoing.none.wait()
        await last.lost.wait()
    receiving[1].cancel()
    await asyncio.wait(receiving)
    await asyncio.sleep(0.05)  # time for what was cancelled to end
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()


async def test_a_second_transfer_after_an_abort_reaches_the_same_nodes(open_peers: OpenPeers) -> None:
    source, target = peers = await open_peers(2)
    blocks, last = some_blocks(), 3
    for attempt in range(last + 1):
        ready = ReadyBlocks([0] if attempt < last else EVERY)
        source.hold(blocks, ready)
        target.verified = ReadyBlocks()
        receiving = target.receive(described(blocks), *chain(*peers, ticket=attempt), to=peers)
        source.send(*chain(*peers, ticket=attempt), to=peers)
        await asyncio.wait_for(target.verified.wait_ready(0), 60)
        if attempt < last:
            receiving.cancel()
            source.outgoing.abort(PLAN)
            await asyncio.wait((receiving,))
        else:
            await receiving
    assert target.memory == blocks


async def test_a_silent_source_is_given_up_before_the_timeout(open_peers: OpenPeers) -> None:
    _, target = peers = await open_peers(2)
    receiving = target.receive(described(some_blocks()), *chain(*peers), to=peers, first=0.2)
    await asyncio.wait_for(target.lost.wait(), 60)
    assert "nothing arrived for 0.2 s" in target.broken[0][1].reason
    receiving.cancel()
    await asyncio.wait((receiving,))


async def test_a_source_that_has_nothing_to_send_gives_its_receiver_up_before_the_timeout(
    open_peers: OpenPeers,
) -> None:
    source, target = peers = await open_peers(2)
    receiving = target.receive(described(some_blocks()), *chain(*peers), to=peers)
    source.held = ReadyBlocks([0])
    with pytest.raises(TransferFailed, match="the data to send did not arrive here in time"):
        await send_chunks(source.link, FlowEnd(source.part(first=0.2), 1, target.node), source.wait_here)
    await asyncio.wait_for(target.lost.wait(), 60)
    assert target.seen[:1] == ["first byte"]
    receiving.cancel()
    await asyncio.wait((receiving,))


async def test_memory_of_another_size_than_the_block_is_refused(open_peers: OpenPeers) -> None:
    _, target = peers = await open_peers(2)
    with pytest.raises(ValueError, match="block 1 has 4095 bytes, its memory 4096"):
        target.receive(described([bytearray(n) for n in (300_001, 4095, 1, 1_000_000)]), to=peers)


async def test_a_flow_of_blocks_or_tickets_that_are_not_there_is_refused(open_peers: OpenPeers) -> None:
    source, target = peers = await open_peers(2)
    expected = described(some_blocks())
    for share, reason in (({"blocks": [4]}, "there is no block 4"), ({"lane": 2, "lanes": 2}, "lane is 2")):
        with pytest.raises(ValueError, match=reason):
            target.receive(expected, flow(1, source, target, **share), to=peers)
    with pytest.raises(Refusal, match="ticket 16777216"):
        source.send(flow(1 << 24, source, target), to=peers)
    assert source.outgoing.none.is_set()


async def test_the_other_end_fails_when_one_goes_away(open_peers: OpenPeers) -> None:
    source, target = peers = await open_peers(2)
    blocks = some_blocks()
    source.hold(blocks, ReadyBlocks([0]))
    receiving = target.receive(described(blocks), *chain(*peers), to=peers)
    source.send(*chain(*peers), to=peers)
    await asyncio.wait_for(target.verified.wait_ready(0), 60)
    await source.link.close()
    await asyncio.wait_for(target.lost.wait(), 60)
    [(_, failure)] = target.broken
    assert isinstance(failure, TransferFailed)
    assert target.received_bytes >= SIZES[0]
    receiving.cancel()
    await asyncio.wait((receiving,))


async def test_each_receiver_of_a_chain_learns_which_way_its_bytes_come(open_peers: OpenPeers) -> None:
    peers = await open_peers(3)
    blocks = some_blocks()
    peers[0].hold(blocks)
    await carry_out(chain(*peers), peers, described(blocks))
    for upstream, peer in itertools.pairwise(peers):
        assert peer.paths.by_peer.keys() == {upstream.node.id}
        assert peer.paths.by_peer[upstream.node.id] in {"cma", "posix", "sysv", "tcp", "sockets"}
        assert peer.moved == {peer.paths.by_peer[upstream.node.id]: sum(SIZES)}
