"""A host that receives a model from another host, over a real link."""

import pytest

from shared.bus.contract import Refusal
from shared.links.open import open_link
from shared.messages.copies import FetchModel, ReleaseModel
from shared.messages.parameters import Manifest, ModelSpec
from shared.messages.transfers import Abort, Inflow, Node, Outflow, Send
from shared.subjects import ABORT, FETCH_MODEL, RELEASE_MODEL, SEND
from tests.host.site import HOST, Site, site
from tests.host.test_sending import CHUNK_BYTES, held, socket_link
from tests.made import tiny

SLOW = 100_000.0  # bytes a second


def node(here: Site) -> Node:
    return Node(id=HOST, place="host", address=here.joins[0].address or b"")


def order(manifest: Manifest, source: Site, epoch: int = 1) -> FetchModel:
    return FetchModel(
        plan_id="copy-1",
        spec=ModelSpec(name="m", path=str(tiny("llama"))),
        manifest=manifest,
        inflows=[Inflow(ticket=7, upstream=node(source))],
        chunk_bytes=CHUNK_BYTES,
        epoch=epoch,
    )


async def begin(manifest: Manifest, source: Site, target: Site) -> None:
    await target.bus.call(FETCH_MODEL, order(manifest, source), timeout=5, id=HOST)
    flow = Outflow(ticket=7, downstream=node(target))
    send = Send(plan_id="copy-1", version=manifest.version, outflows=[flow], chunk_bytes=CHUNK_BYTES, epoch=1)
    await source.bus.call(SEND, send, timeout=5, id=HOST)


async def test_a_fetched_copy_is_whole_announced_again_when_asked_for_and_sent_on() -> None:
    async with (
        site(open_link=lambda: open_link(socket_link())) as source,
        site(open_link=lambda: open_link(socket_link())) as target,
        site(open_link=lambda: open_link(socket_link())) as third,
    ):
        manifest = await held(source)
        await begin(manifest, source, target)
        assert (await target.whole()).manifest == manifest
        await target.bus.call(FETCH_MODEL, order(manifest, source), timeout=5, id=HOST)
        assert (await target.whole(2)).manifest == manifest
        await target.until(lambda: len(target.reports[-1].holdings[0].ready) == len(manifest.blocks))
        assert target.reports[-1].cache_bytes == manifest.size_bytes
        await begin(manifest, target, third)
        assert (await third.whole()).manifest == manifest


async def test_a_copy_whose_sender_stops_is_given_up_and_its_memory_given_back() -> None:
    async with (
        site(open_link=lambda: open_link(socket_link(SLOW))) as source,
        site(open_link=lambda: open_link(socket_link())) as target,
    ):
        manifest = await held(source)
        await begin(manifest, source, target)
        await source.until(lambda: source.reports[-1].holdings[0].sending)
        release = ReleaseModel(model="m", version=manifest.version)
        with pytest.raises(Refusal, match="is being sent"):
            await source.bus.call(RELEASE_MODEL, release, timeout=5, id=HOST)
        await source.bus.call(ABORT, Abort(plan_id="copy-1", reason="test"), timeout=5, id=HOST)
        assert (await target.whole()).error is not None
        await target.until(lambda: target.reports[-1].cache_bytes == 0)
        await source.until(lambda: source.reports[-1].flows_out == 0)
        await source.bus.call(RELEASE_MODEL, release, timeout=5, id=HOST)
        await source.until(lambda: source.reports[-1].cache_bytes == 0)


async def test_a_copy_on_its_way_can_be_released() -> None:
    async with (
        site(open_link=lambda: open_link(socket_link(SLOW))) as source,
        site(open_link=lambda: open_link(socket_link())) as target,
    ):
        manifest = await held(source)
        await begin(manifest, source, target)
        await target.until(lambda: target.reports[-1].cache_bytes > 0)
        await target.release(manifest.version)
        await target.until(lambda: target.reports[-1].cache_bytes == 0)
        await source.bus.call(ABORT, Abort(plan_id="copy-1", reason="test"), timeout=5, id=HOST)
        assert target.reads == []


async def test_what_it_has_no_room_for_or_was_ordered_of_it_before_is_refused() -> None:
    async with site() as source, site(cache_bytes=1 << 20) as target:
        manifest = await held(source)
        with pytest.raises(Refusal, match="--cache-bytes"):
            await target.bus.call(FETCH_MODEL, order(manifest, source), timeout=5, id=HOST)
        with pytest.raises(Refusal, match="epoch 9 is stale"):
            await target.bus.call(FETCH_MODEL, order(manifest, source, 9), timeout=5, id=HOST)
