"""Modelled links keep the contract of links, under virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from livescale.shared.links.calendars import LocalCalendar
from livescale.shared.links.contract import Buffer, LinkError, checksum
from livescale.shared.links.shaping import ShapedLink, SingleRate
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.modelled_links import ModelledLink, ModelledNetwork, ModelledPeer
from livescale.shared.simulation.sparse_memory import SparseBytes, SparseKv

DELAY = 0.001


def buffer(data: bytes | bytearray) -> Buffer:
    return Buffer(memoryview(data))


async def received(peer: ModelledPeer, tag: int, size: int, timeout: float = 5.0) -> bytes:
    got = bytearray(size)
    await peer.receive(tag, buffer(got), timeout=timeout)
    return bytes(got)


class LinkPair:
    """Two links that are connected both ways."""

    def __init__(self) -> None:
        self.network = ModelledNetwork(DELAY)
        self.a, self.b = self.network.open(b"a"), self.network.open(b"b")
        self.to_a: ModelledPeer
        self.to_b: ModelledPeer

    async def connect(self, channel: int = 0, secret: bytes = b"") -> None:
        self.to_b = await self.a.connect(b"b", timeout=1, channel=channel, secret=secret)
        self.to_a = await self.b.connect(b"a", timeout=1, channel=channel, secret=secret)


def play(act: Callable[[LinkPair], Awaitable[None]]) -> None:
    async def main() -> None:
        pair = LinkPair()
        await pair.connect()
        await act(pair)
        await pair.a.close()
        await pair.b.close()

    virtual_time.run(main(), limit_seconds=60)


def test_messages_are_matched_by_tag_in_any_order_and_by_order_within_a_tag() -> None:
    async def act(pair: LinkPair) -> None:
        early = asyncio.create_task(received(pair.to_a, 3, 2))
        for tag, data in ((1, b"11"), (2, b"22"), (1, b"33"), (3, b"44")):
            await pair.to_b.send(tag, buffer(data), timeout=1)
        assert [await received(pair.to_a, tag, 2) for tag in (2, 1, 1)] == [b"22", b"11", b"33"]
        assert await early == b"44"

    play(act)


@pytest.mark.parametrize("memory", [SparseBytes, SparseKv])
def test_parameters_are_spoiled_on_the_way_and_kv_is_not(memory: type[SparseBytes]) -> None:
    async def act(pair: LinkPair) -> None:
        sent, came = memory.of(7), memory.of(7)
        sent.fill(b"content")
        pair.network.spoil = lambda sender, content: content.damaged()
        await pair.to_b.send(1, Buffer(sent), timeout=1)
        await pair.to_a.receive(1, Buffer(came), timeout=1)
        assert (checksum(came) == checksum(sent)) == (memory is SparseKv)

    play(act)


@pytest.mark.parametrize("is_awaited", [True, False])
def test_a_message_takes_the_delay_and_its_buffer_may_be_used_again_once_it_is_sent(is_awaited: bool) -> None:
    async def act(pair: LinkPair) -> None:
        now, data = asyncio.get_running_loop().time, bytearray(b"before")
        receiving = asyncio.create_task(received(pair.to_a, 1, 6)) if is_awaited else None
        begun = now()
        await pair.to_b.send(1, buffer(data), timeout=1)
        data[:] = b"after!"
        assert await (receiving or received(pair.to_a, 1, 6)) == b"before"
        assert now() - begun == pytest.approx(DELAY)

    play(act)


def test_channels_secrets_and_directions_do_not_mix() -> None:
    async def act(pair: LinkPair) -> None:
        first = pair.to_a, pair.to_b
        await pair.connect(channel=7, secret=b"known to both")
        stranger = await pair.a.connect(b"b", timeout=1, channel=7, secret=b"a guess")
        for peer, data in ((first[1], b"0"), (pair.to_b, b"7"), (stranger, b"?"), (pair.to_a, b"<")):
            await peer.send(1, buffer(data), timeout=1)
        assert await received(first[0], 1, 1) == b"0"
        assert await received(pair.to_a, 1, 1) == b"7"
        assert await received(pair.to_b, 1, 1) == b"<"
        with pytest.raises(LinkError, match="took more than 2 s"):
            await received(pair.to_a, 1, 1, timeout=2)

    play(act)


def test_a_message_of_another_size_never_passes_for_the_one_asked_for() -> None:
    async def act(pair: LinkPair) -> None:
        await pair.to_b.send(1, buffer(bytes(10)), timeout=1)
        with pytest.raises(LinkError, match="10 bytes came, not 11"):
            await received(pair.to_a, 1, 11)

    play(act)


def test_connecting_again_gives_the_peer_that_is_there_until_one_end_closes_it() -> None:
    async def act(pair: LinkPair) -> None:
        assert await pair.a.connect(b"b", timeout=1) is pair.to_b
        await pair.to_b.send(1, buffer(b"x"), timeout=1)
        waiting = asyncio.create_task(received(pair.to_a, 2, 1))
        await asyncio.sleep(0)
        await pair.to_b.close()
        assert await received(pair.to_a, 1, 1) == b"x"  # it had come
        with pytest.raises(LinkError, match="closed"):
            await waiting
        for peer in (pair.to_a, pair.to_b):
            with pytest.raises(LinkError, match="closed"):
                await peer.send(1, buffer(b"x"), timeout=1)
            with pytest.raises(LinkError, match="closed"):
                await received(peer, 1, 1)
        gone = pair.to_b
        await pair.connect()
        assert pair.to_b is not gone
        await pair.to_b.send(1, buffer(b"y"), timeout=1)
        assert await received(pair.to_a, 1, 1) == b"y"

    play(act)


@pytest.mark.parametrize("moves", ["send", "receive"])
def test_whoever_stops_waiting_closes_the_channel(moves: str) -> None:
    async def act(pair: LinkPair) -> None:
        work = pair.to_a.send(9, buffer(b"x"), timeout=9) if moves == "send" else received(pair.to_a, 9, 1)
        moving, waiting = asyncio.ensure_future(work), asyncio.create_task(received(pair.to_b, 9, 1))
        await asyncio.sleep(0)
        moving.cancel()
        with pytest.raises(LinkError, match="closed"):
            await waiting
        await asyncio.wait((moving,))

    play(act)


def test_a_process_that_is_gone_fails_what_waits_for_it_and_who_calls_it() -> None:
    async def act(pair: LinkPair) -> None:
        waiting = asyncio.create_task(received(pair.to_b, 1, 1, timeout=60))
        unanswered = await pair.a.connect(b"b", timeout=1, channel=5)
        never = asyncio.create_task(received(unanswered, 1, 1, timeout=60))
        await asyncio.sleep(1)
        await pair.b.close()
        for one in (waiting, never):
            with pytest.raises(LinkError, match="closed"):
                await one
        with pytest.raises(LinkError, match="no process is at b'b'"):
            await pair.a.connect(b"b", timeout=1)
        assert asyncio.get_running_loop().time() < 2
        pair.b = pair.network.open(b"b")  # it was started again
        await pair.connect()
        await pair.to_b.send(1, buffer(b"x"), timeout=1)
        assert await received(pair.to_a, 1, 1) == b"x"

    play(act)


def test_nothing_is_kept_of_channels_that_are_closed() -> None:
    async def act(pair: LinkPair) -> None:
        for channel in range(20):
            await pair.connect(channel)
            await pair.to_b.send(1, buffer(b"x"), timeout=1)
            await (pair.to_a, pair.to_b)[channel % 2].close()
        await asyncio.sleep(1)
        assert pair.network._mailboxes == {b"a": {}, b"b": {}}

    play(act)


def test_a_shaped_link_over_it_has_its_rate() -> None:
    async def act(pair: LinkPair) -> None:
        calendar = LocalCalendar()
        a, b = (ShapedLink(link, SingleRate(1e6), calendar) for link in (pair.a, pair.b))
        to_b, to_a = await a.connect(b"b", timeout=1, channel=3), await b.connect(b"a", timeout=1, channel=3)
        begun = asyncio.get_running_loop().time()
        data = bytes(500_000)
        await asyncio.gather(
            *(to_b.send(tag, buffer(data), timeout=1) for tag in range(4)),
            *(to_a.receive(tag, buffer(bytearray(data)), timeout=60) for tag in range(4)),
        )
        assert asyncio.get_running_loop().time() - begun == pytest.approx(2 + DELAY)

    play(act)


def test_an_address_belongs_to_one_link() -> None:
    network = ModelledNetwork(DELAY)
    assert isinstance(network.open(b"a"), ModelledLink)
    with pytest.raises(LinkError, match="is open already"):
        network.open(b"a")
    with pytest.raises(ValueError, match="give more than 0"):
        ModelledNetwork(0)


def test_what_is_open_between_two_links_fails_when_they_are_cut_and_can_be_opened_again_once_mended() -> None:
    async def act(pair: LinkPair) -> None:
        waiting = asyncio.create_task(received(pair.to_a, 1, 2))
        await asyncio.sleep(1.0)
        pair.network.cut(b"a", b"b")
        with pytest.raises(LinkError):
            await waiting
        with pytest.raises(LinkError, match="cut"):
            await pair.a.connect(b"b", timeout=1)
        pair.network.mend(b"b", b"a")
        await pair.connect()
        await pair.to_b.send(1, buffer(b"22"), timeout=1)
        assert await received(pair.to_a, 1, 2) == b"22"

    play(act)


@pytest.mark.parametrize("waits", [False, True])
def test_nothing_is_kept_of_messages_that_were_taken(waits: bool) -> None:
    """Each chunk of parameters has a tag of its own: a cluster that loads takes a million of them."""

    async def act(pair: LinkPair) -> None:
        for tag in range(50):
            receiving = asyncio.create_task(received(pair.to_a, tag, 1)) if waits else None
            await asyncio.sleep(0)
            await pair.to_b.send(tag, buffer(b"x"), timeout=1)
            assert await (receiving or received(pair.to_a, tag, 1)) == b"x"
        box = pair.network.mailbox((b"a", b"b", 0, b""))
        assert not box._waiting
        assert not box._came

    play(act)
