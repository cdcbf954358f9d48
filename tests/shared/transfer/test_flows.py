"""Plans of other shapes than a chain: lanes and an all-gather, trees, exchanges by steps, a target that joins late."""

import asyncio

import pytest

from livescale.shared.messages.transfers import Flow
from livescale.shared.transfer.flow_end import ReadyBlocks
from livescale.shared.transfer.sender import Turns
from tests.shared.transfer.transfer_peer import EVERY, SIZES, OpenPeers, carry_out, chain, described, flow, some_blocks


async def test_two_lanes_and_an_all_gather_bring_each_every_byte_once(open_peers: OpenPeers) -> None:
    """BlitzScale Fig. 14: each source sends half to one GPU of the domain, and the two exchange their halves."""
    left, right, one, two = peers = await open_peers(4)
    blocks = some_blocks()
    left.hold(blocks)
    right.hold(blocks)
    flows = [
        flow(1, left, one, lane=0, lanes=2),
        flow(2, right, two, lane=1, lanes=2),
        flow(3, one, two, lane=0, lanes=2),
        flow(4, two, one, lane=1, lanes=2),
    ]
    await carry_out(flows, peers, described(blocks))
    for target in (one, two):
        assert target.memory == blocks
        assert target.received_bytes == sum(SIZES)


async def test_a_tree_delivers_every_block(open_peers: OpenPeers) -> None:
    source, *targets = peers = await open_peers(4)
    blocks = some_blocks()
    source.hold(blocks)
    flows = [flow(1, source, targets[0]), flow(2, source, targets[1]), flow(3, targets[0], targets[2])]
    await carry_out(flows, peers, described(blocks))
    assert [target.memory for target in targets] == [blocks] * 3


def exchange(source: str, one: str, two: str, three: str) -> list[Flow]:
    """Two blocks from one node to three, one send and one receive a node and step (LambdaScale 4.2), twice over."""
    rows = [
        (source, one, [0, 2], [0, 3]),
        (source, two, [1, 3], [1, 4]),
        (one, three, [0, 2], [1, 4]),
        (one, two, [0, 2], [2, 5]),
        (two, three, [1, 3], [2, 5]),
        (three, one, [1, 3], [3, 6]),
    ]
    return [
        Flow(sender=sender, receiver=receiver, ticket=ticket, blocks=blocks, steps=steps)
        for ticket, (sender, receiver, blocks, steps) in enumerate(rows)
    ]


async def test_an_exchange_by_steps_delivers_every_block(open_peers: OpenPeers) -> None:
    peers, blocks = await open_peers(4), some_blocks()
    peers[0].hold(blocks)
    await carry_out(exchange(*(peer.node.id for peer in peers)), peers, described(blocks))
    for target in peers[1:]:
        assert target.memory == blocks
        assert target.received_bytes == sum(SIZES)


async def test_a_node_that_joins_during_a_transfer_is_fed_by_one_that_is_still_receiving(open_peers: OpenPeers) -> None:
    source, target, late = peers = await open_peers(3)
    blocks, ready = some_blocks(), ReadyBlocks([0, 1])
    source.hold(blocks, ready)
    flows = chain(*peers)
    receiving = target.receive(described(blocks), *flows, to=peers)
    source.send(*flows, to=peers)
    await target.verified.wait_ready(1)
    joining = late.receive(described(blocks), *flows, to=peers)
    target.send(*flows, to=peers)
    await late.verified.wait_ready(1)
    assert late.received_bytes < sum(SIZES)
    for index in EVERY:
        ready.add(index)
    async with asyncio.timeout(60):
        await asyncio.gather(receiving, joining)
    assert target.memory == late.memory == blocks


async def test_a_damaged_stripe_has_both_of_its_flows_replaced_and_only_the_block_sent_again(
    open_peers: OpenPeers,
) -> None:
    left, right, good, target = peers = await open_peers(4)
    blocks, damaged = some_blocks(), some_blocks()
    damaged[3][0] ^= 1  # in the second lane
    left.hold(blocks)
    right.hold(damaged)
    good.hold(blocks)
    halves = [flow(1, left, target, lane=0, lanes=2), flow(2, right, target, lane=1, lanes=2)]
    receiving = target.receive(described(blocks), *halves, to=peers)
    for peer in (left, right):
        peer.send(*halves, to=peers)
    await asyncio.wait_for(target.lost.wait(), 60)
    assert {ticket for ticket, _ in target.broken} == {1, 2}
    again = [flow(3, left, target, lane=0, lanes=2), flow(4, good, target, lane=1, lanes=2)]
    target.follow(*again, to=peers)
    for peer in (left, good):
        peer.send(*again, to=peers)
    async with asyncio.timeout(60):
        await receiving
    assert target.memory == blocks
    assert target.received_bytes == sum(SIZES) + SIZES[3]


async def test_steps_follow_each_other_over_all_flows() -> None:
    turns, order = Turns(), []
    turns.join(1, [0, 2])
    turns.join(2, [1])

    async def send(ticket: int, step: int) -> None:
        await turns.reached(step)
        order.append((ticket, step))
        turns.sent(ticket, step)

    await asyncio.wait_for(asyncio.gather(send(1, 2), send(2, 1), send(1, 0)), 60)
    assert order == [(1, 0), (2, 1), (1, 2)]


async def test_a_flow_that_ends_early_holds_nobody_up() -> None:
    turns = Turns()
    turns.join(1, [0])
    turns.join(2, [1])
    waiting = asyncio.create_task(turns.reached(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    turns.leave(1)
    async with asyncio.timeout(60):
        await waiting


@pytest.mark.parametrize("lanes", [1, 2, 3])
async def test_lanes_cover_every_chunk_once(lanes: int, open_peers: OpenPeers) -> None:
    source, target = peers = await open_peers(2)
    blocks = some_blocks()
    source.hold(blocks)
    flows = [flow(lane, source, target, lane=lane, lanes=lanes, blocks=[3, 1, 0, 2]) for lane in range(lanes)]
    await carry_out(flows, peers, described(blocks))
    assert target.memory == blocks
    assert target.received_bytes == sum(SIZES)
