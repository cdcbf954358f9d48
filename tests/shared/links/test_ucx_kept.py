"""Endpoints that outlive their channels: which are used again, and what becomes of them when their process does not
answer. Over real UCX, as all of it is about what UCX tells."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pytest

from livescale.shared.links.contract import Buffer, LinkError
from livescale.shared.links.open import open_link
from livescale.shared.links.ucx import ANSWER_SECONDS, UcxLink
from livescale.shared.links.ucx_engine import UcxEngine
from livescale.shared.links.ucx_peer import UcxPeer
from livescale.shared.runtime.settings import LinkSettings
from tests.shared.links.conftest import count_descriptors, until

DATA = b"9 of them"
SETTINGS = LinkSettings(transport="ucx")


async def opened(most_kept: int | None = None) -> UcxLink:
    link = await open_link(SETTINGS)
    assert isinstance(link, UcxLink)
    if most_kept is None:
        return link
    await link.close()
    return UcxLink(UcxEngine("127.0.0.1", "host"), most_kept)


@pytest.fixture
async def ends() -> AsyncIterator[tuple[UcxLink, UcxLink]]:
    a, b = await opened(), await opened()
    yield a, b
    await a.close()
    await b.close()


async def channel_of(a: UcxLink, b: UcxLink, channel: int) -> tuple[UcxPeer, UcxPeer]:
    return (
        await a.connect(b.address, timeout=60, channel=channel),
        await b.connect(a.address, timeout=60, channel=channel),
    )


async def move(near: UcxPeer, far: UcxPeer) -> None:
    got = bytearray(len(DATA))
    await asyncio.gather(
        near.send(1, Buffer(memoryview(DATA)), timeout=60), far.receive(1, Buffer(memoryview(got)), timeout=60)
    )
    assert got == DATA


def made(link: UcxLink) -> int:
    return link._engine.made.total()


def kept(link: UcxLink) -> int:
    return len(link._kept)


async def test_the_next_channel_takes_what_the_last_one_left(ends: tuple[UcxLink, UcxLink]) -> None:
    a, b = ends
    for channel in range(1, 8):
        near, far = await channel_of(a, b, channel)
        await move(near, far)
        await move(far, near)
        await (near if channel % 2 else far).close()
        await until(lambda: kept(a) == kept(b) == 1)
    assert made(a) == made(b) == 1


async def test_channels_at_the_same_time_never_share_an_endpoint(ends: tuple[UcxLink, UcxLink]) -> None:
    a, b = ends
    for first in (10, 20):  # the second time over endpoints that were kept
        pairs = [await channel_of(a, b, first + n) for n in range(3)]
        assert len({near.endpoint for near, _ in pairs}) == len({far.endpoint for _, far in pairs}) == 3
        waiting = asyncio.create_task(pairs[0][0].receive(7, Buffer(memoryview(bytearray(9))), timeout=30))
        await asyncio.sleep(0)
        await pairs[0][0].close()
        with pytest.raises(LinkError):
            await waiting
        for near, far in pairs[1:]:
            await move(near, far)
            await near.close()
        await until(lambda: kept(a) == kept(b) == 2)  # what was abandoned is closed at both ends


async def test_ends_that_take_the_same_endpoint_for_different_channels_both_get_one(
    ends: tuple[UcxLink, UcxLink],
) -> None:
    a, b = ends
    near, _ = await channel_of(a, b, 1)
    await near.close()
    await until(lambda: kept(a) == kept(b) == 1)
    to_b, to_a = await asyncio.gather(
        a.connect(b.address, timeout=60, channel=2), b.connect(a.address, timeout=60, channel=3)
    )
    await move(to_b, await b.connect(a.address, timeout=60, channel=2))
    await move(to_a, await a.connect(b.address, timeout=60, channel=3))


async def test_a_new_endpoint_that_the_other_end_closes_at_once_is_made_again(ends: tuple[UcxLink, UcxLink]) -> None:
    a, b = ends
    connecting = asyncio.create_task(a.connect(b.address, timeout=60, channel=1))
    await asyncio.sleep(0)  # its hello is on the way
    (first,) = a._peers.values()
    first.endpoint._gone()
    near = await connecting
    assert near is not first
    await move(near, await b.connect(a.address, timeout=60, channel=1))
    assert made(a) == 2


async def test_no_more_are_kept_than_the_limit_and_the_other_end_keeps_no_half() -> None:
    a, b = await opened(most_kept=2), await opened()
    before = count_descriptors()
    pairs = [await channel_of(a, b, channel) for channel in range(6)]
    for near, far in pairs:
        await move(near, far)
        await near.close()
    await until(lambda: kept(a) == kept(b) == 2)
    assert {near.endpoint.number for near, _ in pairs if near.endpoint.ucx} == {
        far.endpoint.number for _, far in pairs if far.endpoint.ucx
    }
    await until(lambda: count_descriptors() <= before + 2 * 2 + 4)  # a pair's ends, and UCX's own
    await a.close()
    await until(lambda: kept(b) == 0)
    await b.close()


async def test_a_link_that_keeps_nothing_leaves_nothing_at_the_other_end() -> None:
    a, b = await opened(most_kept=0), await opened()
    for channel in range(3):
        near, far = await channel_of(a, b, channel)
        await move(near, far)
        await far.close()
        await until(lambda: kept(a) == kept(b) == 0)
    assert made(a) == 3
    await a.close()
    await b.close()


class Far:
    """The process at the other end."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.shared.links.kept_end"]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    async def meet(self, link: UcxLink) -> bytes:
        address = bytes.fromhex(await self.hears())
        self.tell(link.address.hex())
        return address

    def tell(self, text: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{text}\n")
        self._child.stdin.flush()

    async def hears(self) -> str:
        assert self._child.stdout is not None
        async with asyncio.timeout(60):
            return (await asyncio.to_thread(self._child.stdout.readline)).strip()

    async def takes(self, link: UcxLink, address: bytes, channel: int) -> None:
        """Have a message go over a channel, which the other end closes."""
        self.tell(channel)
        peer = await link.connect(address, timeout=30, channel=channel)
        await peer.send(1, Buffer(memoryview(DATA)), timeout=30)
        assert await self.hears() == str(channel)

    def signal(self, sign: signal.Signals) -> None:
        self._child.send_signal(sign)

    def close(self) -> None:
        self._child.kill()
        self._child.communicate()


@pytest.fixture
def far() -> Iterator[Far]:
    with closing(Far()) as process:
        yield process


async def test_nothing_is_kept_to_a_process_that_died_and_one_that_comes_after_it_is_reached(far: Far) -> None:
    link = await opened()
    address = await far.meet(link)
    await far.takes(link, address, 1)
    await until(lambda: kept(link) == 1)
    far.signal(signal.SIGKILL)
    await until(lambda: kept(link) == 0)
    with pytest.raises(LinkError):
        await link.connect(address, timeout=60, channel=2)
    with closing(Far()) as again:
        await again.takes(link, await again.meet(link), 2)
        await until(lambda: kept(link) == 1)
    await link.close()


async def test_a_frozen_process_holds_nobody_up_and_is_reached_again_once_it_goes_on(far: Far) -> None:
    link = await opened()
    address = await far.meet(link)
    await far.takes(link, address, 1)
    await until(lambda: kept(link) == 1)
    far.signal(signal.SIGSTOP)
    with pytest.raises(LinkError, match="connect"):
        await link.connect(address, timeout=2 * ANSWER_SECONDS, channel=2)
    far.signal(signal.SIGCONT)
    for channel in (3, 4):
        await far.takes(link, address, channel)
    await link.close()


async def test_a_connect_over_a_kept_endpoint_may_be_cancelled(far: Far) -> None:
    link = await opened()
    address = await far.meet(link)
    await far.takes(link, address, 1)
    await until(lambda: kept(link) == 1)
    far.signal(signal.SIGSTOP)
    connecting = asyncio.create_task(link.connect(address, timeout=30, channel=2))
    await asyncio.sleep(0.05)  # of real time, until it waits for the other end, a process that is stopped
    connecting.cancel()
    await asyncio.wait((connecting,), timeout=60)
    assert connecting.cancelled()
    far.signal(signal.SIGCONT)
    await far.takes(link, address, 3)
    await link.close()
