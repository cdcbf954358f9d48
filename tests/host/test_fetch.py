"""A host that receives a model from another host, over a real link."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from livescale.services.host.disk import ThreadDisk
from livescale.services.host.stored import Stored
from livescale.shared.bus.contract import Refusal
from livescale.shared.links.contract import Buffer, Link, Peer
from livescale.shared.links.open import open_link
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import FetchModel, ReleaseModel
from livescale.shared.messages.transfers import Abort, Inflow, Node, Outflow, Send
from livescale.shared.subjects import ABORT, FETCH_MODEL, RELEASE_MODEL, SEND
from tests.checkpoints import copy_checkpoint, tiny_checkpoint
from tests.host.local import HOST, LocalHost, local_host
from tests.host.test_sending import CHUNK_BYTES, held, socket_link

SLOW = 2e6  # bytes a second: a quarter of a second a block


class RecordingDisk(ThreadDisk):
    """Says which blocks were read from it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks_read: list[int] = []

    async def read(self, stored: Stored, blocks: Mapping[int, memoryview]) -> AsyncGenerator[int, None]:
        self.blocks_read += blocks
        async with aclosing(super().read(stored, blocks)) as read:
            async for checksum in read:
                yield checksum


class CountingPeer:
    """Counts chunks that are sent to a peer."""

    def __init__(self, peer: Peer, sizes: list[int]) -> None:
        self._peer = peer
        self._sizes = sizes
        self.receive, self.close, self.path = peer.receive, peer.close, peer.path

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        await self._peer.send(tag, buffer, timeout=timeout)
        if buffer.size_bytes > 1_000:  # signs of life are less
            self._sizes.append(buffer.size_bytes)


class CountingLink:
    """`sizes` of the chunks that were sent."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.address, self.close = link.address, link.close
        self.sizes: list[int] = []

    async def connect(self, address: bytes, **how: Any) -> Peer:
        return CountingPeer(await self._link.connect(address, **how), self.sizes)


def node(here: LocalHost) -> Node:
    return Node(id=HOST, place="host", address=here.joins[0].address or b"")


def order(
    manifest: Manifest, *sources: LocalHost, epoch: int = 1, ticket: int = 7, plan: str = "copy-1", path: str = ""
) -> FetchModel:
    return FetchModel(
        plan_id=plan,
        spec=ModelSpec(name="m", path=path or str(tiny_checkpoint("llama"))),
        manifest=manifest,
        inflows=[Inflow(ticket=ticket, upstream=node(source)) for source in sources],
        chunk_bytes=CHUNK_BYTES,
        epoch=epoch,
    )


async def fetch(target: LocalHost, command: FetchModel) -> None:
    await target.bus.call(FETCH_MODEL, command, timeout=5, id=HOST)


async def begin(manifest: Manifest, source: LocalHost, target: LocalHost, ticket: int = 7, path: str = "") -> None:
    await fetch(target, order(manifest, source, ticket=ticket, path=path))
    flow = Outflow(ticket=ticket, downstream=node(target))
    send = Send(plan_id="copy-1", version=manifest.version, outflows=[flow], chunk_bytes=CHUNK_BYTES, epoch=1)
    await source.bus.call(SEND, send, timeout=5, id=HOST)


async def stop(source: LocalHost, target: LocalHost) -> list[int]:
    """The source stops once the first blocks are there; those that are."""
    await target.until(lambda: bool(target.reports[-1].holdings) and bool(target.reports[-1].holdings[0].ready))
    await source.bus.call(ABORT, Abort(plan_id="copy-1", reason="test"), timeout=5, id=HOST)
    await target.until(lambda: bool(target.transfers))
    assert [(one.state, one.ticket, one.plan_id) for one in target.transfers] == [("broken", 7, "copy-1")]
    assert target.reads == []
    return target.reports[-1].holdings[0].ready


async def test_a_fetched_copy_is_whole_announced_again_when_asked_for_and_sent_on() -> None:
    async with (
        local_host(open_link=lambda: open_link(socket_link())) as source,
        local_host(open_link=lambda: open_link(socket_link())) as target,
        local_host(open_link=lambda: open_link(socket_link())) as third,
    ):
        manifest = await held(source)
        with capture_logs() as lines:
            await begin(manifest, source, target)
            assert (await target.whole()).manifest == manifest
        assert [line["path"] for line in lines if line["event"] == "path_chosen"] == ["sockets"]
        await fetch(target, order(manifest, source))
        assert (await target.whole(2)).manifest == manifest
        await target.until(lambda: len(target.reports[-1].holdings[0].ready) == len(manifest.blocks))
        assert target.reports[-1].cache_bytes == manifest.size_bytes
        await begin(manifest, target, third)
        assert (await third.whole()).manifest == manifest


async def test_a_copy_whose_sender_stops_goes_on_from_another_and_nothing_comes_twice() -> None:
    link = CountingLink(await open_link(socket_link()))

    async def counting() -> Link:
        return link

    async with (
        local_host(open_link=lambda: open_link(socket_link(SLOW))) as source,
        local_host(open_link=counting) as other,
        local_host(RecordingDisk(), open_link=lambda: open_link(socket_link())) as target,
    ):
        manifest = await held(source)
        await held(other)
        await begin(manifest, source, target)
        here = await stop(source, target)
        await begin(manifest, other, target, ticket=8)
        assert (await target.whole()).manifest == manifest
        missing = sum(block.size_bytes for block in manifest.blocks if block.index not in here)
        assert 0 < sum(link.sizes) <= missing
        assert isinstance(target.disk, RecordingDisk)
        assert target.disk.blocks_read == []


async def test_an_earlier_command_that_comes_again_ends_no_flow_of_a_later_one() -> None:
    async with (
        local_host(open_link=lambda: open_link(socket_link(SLOW))) as source,
        local_host(open_link=lambda: open_link(socket_link(SLOW))) as other,
        local_host(RecordingDisk(), open_link=lambda: open_link(socket_link())) as target,
    ):
        manifest = await held(source)
        await held(other)
        await begin(manifest, source, target)
        await stop(source, target)
        await begin(manifest, other, target, ticket=8)
        await fetch(target, order(manifest, source))
        assert (await target.whole()).manifest == manifest
        assert isinstance(target.disk, RecordingDisk)
        assert target.disk.blocks_read == []


async def test_only_blocks_that_no_sender_has_are_read_from_disk() -> None:
    async with (
        local_host(open_link=lambda: open_link(socket_link(SLOW))) as source,
        local_host(RecordingDisk(), open_link=lambda: open_link(socket_link())) as target,
    ):
        manifest = await held(source)
        await begin(manifest, source, target)
        here = await stop(source, target)
        await fetch(target, order(manifest))
        assert (await target.whole()).manifest == manifest
        assert isinstance(target.disk, RecordingDisk)
        assert sorted([*here, *target.disk.blocks_read]) == list(range(len(manifest.blocks)))


async def test_a_host_that_is_told_nothing_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livescale.services.host.fetch.PATIENCE_SECONDS", 0.2)
    async with (
        local_host(open_link=lambda: open_link(socket_link(SLOW))) as source,
        local_host(open_link=lambda: open_link(socket_link())) as target,
    ):
        manifest = await held(source)
        await begin(manifest, source, target)
        await stop(source, target)
        assert (await target.whole()).manifest == manifest


async def test_a_copy_that_cannot_go_on_anywhere_is_given_up_and_its_memory_given_back() -> None:
    async with (
        local_host(open_link=lambda: open_link(socket_link(SLOW))) as source,
        local_host(open_link=lambda: open_link(socket_link())) as target,
    ):
        manifest = await held(source)
        await begin(manifest, source, target, path="/nowhere")
        await source.until(lambda: source.reports[-1].holdings[0].sending)
        release = ReleaseModel(model="m", version=manifest.version)
        with pytest.raises(Refusal, match="is being sent"):
            await source.bus.call(RELEASE_MODEL, release, timeout=5, id=HOST)
        await stop(source, target)
        with pytest.raises(Refusal, match="already being fetched for plan copy-1"):
            await fetch(target, order(manifest, source, plan="copy-2"))
        await fetch(target, order(manifest, path="/nowhere"))
        assert "/nowhere" in str((await target.whole()).error)
        await target.until(lambda: target.reports[-1].cache_bytes == 0)
        await source.until(lambda: source.reports[-1].flows_out == 0)
        await source.bus.call(RELEASE_MODEL, release, timeout=5, id=HOST)
        await source.until(lambda: source.reports[-1].cache_bytes == 0)


async def test_a_copy_that_is_released_before_it_has_begun_leaves_nothing() -> None:
    async with local_host() as source, local_host() as target:
        manifest = await held(source)
        command = order(manifest, source)
        release = ReleaseModel(model="m", version=manifest.version)
        release_at_once = target.bus.call(RELEASE_MODEL, release, timeout=5, id=HOST)
        await asyncio.gather(fetch(target, command), release_at_once)
        await target.until(lambda: target.reports[-1].holdings == [])
        await asyncio.sleep(0.1)  # time in which it would read after all
        assert target.reads == []


async def test_a_copy_on_its_way_can_be_released() -> None:
    async with (
        local_host(open_link=lambda: open_link(socket_link(SLOW))) as source,
        local_host(open_link=lambda: open_link(socket_link())) as target,
    ):
        manifest = await held(source)
        await begin(manifest, source, target)
        await target.until(lambda: target.reports[-1].cache_bytes > 0)
        await target.release(manifest.version)
        await target.until(lambda: target.reports[-1].cache_bytes == 0)
        await source.bus.call(ABORT, Abort(plan_id="copy-1", reason="test"), timeout=5, id=HOST)
        assert target.reads == []


async def test_a_copy_on_its_way_ends_where_the_same_is_read_from_other_files_meanwhile(tmp_path: Path) -> None:
    async with (
        local_host(open_link=lambda: open_link(socket_link(SLOW))) as source,
        local_host(open_link=lambda: open_link(socket_link())) as target,
    ):
        manifest = await held(source)
        await begin(manifest, source, target)
        await target.until(lambda: bool(target.reports[-1].holdings) and bool(target.reports[-1].holdings[0].ready))
        await target.read(copy_checkpoint("llama", tmp_path))
        assert (await target.whole()).manifest == manifest
        await target.until(lambda: len(target.reports[-1].holdings) == 1)
        await asyncio.sleep(1.0)  # time in which more blocks would come
        [holding] = target.reports[-1].holdings
        assert (holding.version, holding.is_whole) == (manifest.version, True)
        assert target.reports[-1].cache_bytes == manifest.size_bytes


async def test_what_it_has_no_room_for_or_was_ordered_of_it_before_is_refused() -> None:
    async with local_host() as source, local_host(cache_bytes=1 << 20) as target:
        manifest = await held(source)
        with pytest.raises(Refusal, match="--cache-bytes"):
            await fetch(target, order(manifest, source))
        with pytest.raises(Refusal, match="epoch 9 is stale"):
            await fetch(target, order(manifest, source, epoch=9))
