"""Memory that processes of one machine share: mapped instead of received, checked as usual, and closed to all
others."""

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import AsyncExitStack

import pytest

from livescale.shared.links.open import open_link
from livescale.shared.memory.arena import SharedBlocks
from livescale.shared.messages.transfers import Node
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.transfer.flow_end import FlowEnd, ModelCopy, ReadyBlocks
from livescale.shared.transfer.memory_export import MemoryExport, open_memory_export
from tests.shared.transfer.transfer_peer import SIZES, TransferPeer, chain, described, flow, some_blocks


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def neighbours(
    stack: AsyncExitStack, executor: Executor, *exports_memory: bool, transport: str = "ucx"
) -> list[TransferPeer]:
    """Stations on one machine; those without an export could as well be elsewhere."""
    peers = []
    for number, one in enumerate(exports_memory):
        settings = LinkSettings(transport=transport, share_memory="auto" if one else "off")  # type: ignore[arg-type]
        link = await open_link(settings)
        stack.push_async_callback(link.close)
        export = open_memory_export(settings, link.address)
        if export is not None:
            stack.push_async_callback(export.close)
        peer = TransferPeer(f"worker-{number}", link, executor, export)
        peer.secret = b"a secret of the plan"
        peers.append(await stack.enter_async_context(peer))
    return peers


def came_by(peer: TransferPeer) -> tuple[int, int]:
    """Return the bytes that came over the link, and those that were mapped."""
    assert peer.incoming is not None
    return peer.received_bytes, peer.incoming.arrivals.shared_bytes


@pytest.mark.parametrize("transport", ["ucx", "socket"])
async def test_a_chain_on_one_machine_maps_the_copy_and_moves_nothing(
    transport: str, stack: AsyncExitStack, executor: Executor
) -> None:
    peers, blocks = await neighbours(stack, executor, True, True, True, transport=transport), some_blocks()
    source, *targets = peers
    ready = ReadyBlocks()
    source.hold(blocks, ready, shared=True)
    receiving = [target.receive(described(blocks), *chain(*peers), to=peers) for target in targets]
    for peer in peers:
        peer.send(*chain(*peers), to=peers)
    for index in range(len(blocks)):  # block by block, as they are read from a disk
        ready.add(index)
        async with asyncio.timeout(60):
            await targets[-1].verified.wait_ready(index)
    await asyncio.gather(*receiving)
    for target in targets:
        assert target.memory == blocks
        assert target.seen == ["first byte", 0, 1, 2, 3]
        assert came_by(target) == (0, sum(SIZES))
        assert list(target.paths.by_peer.values()) == ["mapped"]


@pytest.mark.parametrize(("source_has", "target_has", "shared"), [(1, 0, 1), (0, 1, 1), (1, 1, 0)])
async def test_where_one_end_shares_nothing_everything_is_sent(
    source_has: int, target_has: int, shared: int, stack: AsyncExitStack, executor: Executor
) -> None:
    source, target = peers = await neighbours(stack, executor, bool(source_has), bool(target_has))
    blocks = some_blocks()
    source.hold(blocks, shared=bool(shared))
    receiving = target.receive(described(blocks), *chain(*peers), to=peers)
    source.send(*chain(*peers), to=peers)
    async with asyncio.timeout(60):
        await receiving
    assert target.memory == blocks
    assert came_by(target) == (sum(SIZES), 0)


async def test_what_a_hop_received_over_the_link_it_sends_on(stack: AsyncExitStack, executor: Executor) -> None:
    peers, blocks = await neighbours(stack, executor, False, True, True), some_blocks()
    source, *targets = peers
    source.hold(blocks)
    receiving = [target.receive(described(blocks), *chain(*peers), to=peers) for target in targets]
    for peer in peers:
        peer.send(*chain(*peers), to=peers)
    async with asyncio.timeout(60):
        await asyncio.gather(*receiving)
    assert [came_by(target) for target in targets] == [(sum(SIZES), 0)] * 2


async def test_lanes_from_a_neighbour_and_from_elsewhere_make_whole_blocks(
    stack: AsyncExitStack, executor: Executor
) -> None:
    near, far, target = peers = await neighbours(stack, executor, True, False, True)
    blocks = some_blocks()
    near.hold(blocks, shared=True)
    far.hold(blocks)
    flows = [flow(1, near, target, lane=0, lanes=2), flow(2, far, target, lane=1, lanes=2)]
    receiving = target.receive(described(blocks), *flows, to=peers)
    for peer in (near, far):
        peer.send(*flows, to=peers)
    async with asyncio.timeout(60):
        await receiving
    assert target.memory == blocks
    assert sum(came_by(target)) == sum(SIZES)
    assert near.memory == blocks


async def test_what_is_mapped_outlives_its_source(stack: AsyncExitStack, executor: Executor) -> None:
    source, target = peers = await neighbours(stack, executor, True, True)
    blocks = some_blocks()
    source.hold(blocks, shared=True)
    receiving = target.receive(described(blocks), *chain(*peers), to=peers)
    source.send(*chain(*peers), to=peers)
    async with asyncio.timeout(60):
        await receiving
    source.memory = []
    gc.collect()
    assert target.memory == blocks


async def test_damaged_memory_is_noticed_and_the_block_comes_over_the_link(
    stack: AsyncExitStack, executor: Executor
) -> None:
    bad, good, target = peers = await neighbours(stack, executor, True, True, True)
    blocks = some_blocks()
    bad.hold(blocks, shared=True)
    good.hold(blocks, shared=True)
    bad.memory[2][0] ^= 1
    flows = [flow(1, bad, target), flow(2, good, target)]
    receiving = target.receive(described(blocks), flows[0], to=peers)
    bad.send(*flows, to=peers)
    async with asyncio.timeout(60):
        await target.lost.wait()
        assert "has checksum" in target.broken[0][1].reason
        good.send(*flows, to=peers)
        target.follow(flows[1], to=peers)
        await receiving
    assert target.memory == blocks
    assert bad.memory[2] != blocks[2]
    assert came_by(target)[0] >= SIZES[2]


async def test_a_process_that_does_not_know_the_secret_gets_nothing(stack: AsyncExitStack, executor: Executor) -> None:
    source, stranger, receiver = peers = await neighbours(stack, executor, True, True, True)
    source.hold(some_blocks(), shared=True)
    source.send(flow(1, source, stranger), flow(2, source, receiver), to=peers)
    assert stranger.export is not None
    assert receiver.export is not None
    part = ModelCopy("worker-1", 1024, [memoryview(bytearray(1))])
    assert await stranger.export.ask(FlowEnd(part, 1, source.node, b"a guess")) is None
    assert await receiver.export.ask(FlowEnd(part, 2, source.node, source.secret)) is not None


async def test_a_process_that_hands_over_memory_must_know_the_secret_too(
    stack: AsyncExitStack, executor: Executor
) -> None:
    (target,) = await neighbours(stack, executor, True)
    address = b"an address that somebody else took first"
    part = ModelCopy("worker-0", 1024, [memoryview(bytearray(1))])
    end = FlowEnd(part, 1, Node(id="somebody", place="worker", address=address), b"a secret")
    impostor = MemoryExport(address)
    stack.push_async_callback(impostor.close)
    segment = SharedBlocks([1]).segment
    descriptors = len(os.listdir("/proc/self/fd"))

    async def answer(sock: socket.socket) -> None:
        with sock:
            await asyncio.get_running_loop().sock_recv(sock, 4096)
            socket.send_fds(sock, [bytes(32)], [segment.descriptor])

    impostor._answer = answer  # type: ignore[method-assign]
    assert target.export is not None
    assert await target.export.ask(end) is None
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def test_a_sender_that_exports_nothing_is_no_error(stack: AsyncExitStack, executor: Executor) -> None:
    (target,) = await neighbours(stack, executor, True)
    assert target.export is not None
    elsewhere = Node(id="elsewhere", place="worker", address=b"no such process")
    assert await target.export.ask(FlowEnd(target.part(), 1, elsewhere)) is None


@pytest.mark.parametrize(
    "settings",
    [
        LinkSettings(share_memory="off"),
        LinkSettings(link_rate=1e8),
        LinkSettings(topology="cluster-b", place="b0/0", shaping_file="/nowhere"),
    ],
)
async def test_shaped_links_and_the_setting_keep_memory_unshared(settings: LinkSettings) -> None:
    assert open_memory_export(settings, b"address") is None


async def test_a_second_export_at_the_same_address_is_not_opened() -> None:
    first = open_memory_export(LinkSettings(), b"address")
    assert first is not None
    assert open_memory_export(LinkSettings(), b"address") is None
    await first.close()
