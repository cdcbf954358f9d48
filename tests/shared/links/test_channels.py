"""Several channels between the same two processes, over both transports."""

import asyncio
import random
from collections.abc import Iterable

import pytest

from livescale.shared.links.contract import Buffer, Link, LinkError, Peer
from livescale.shared.links.open import open_link
from livescale.shared.runtime.settings import LinkSettings
from tests.shared.links.conftest import Pair, count_descriptors, until


def buffer(data: bytes | bytearray) -> Buffer:
    return Buffer(memoryview(data))


async def test_what_ends_one_channel_leaves_the_others_between_the_same_two_alone(pair: Pair) -> None:
    to_b, to_a = [
        await near.connect(far.address, timeout=60, channel=9) for near, far in ((pair.a, pair.b), (pair.b, pair.a))
    ]
    got, data = bytearray(3_000_000), random.Random(1).randbytes(3_000_000)
    moving = asyncio.gather(to_b.send(1, buffer(data), timeout=60), to_a.receive(1, buffer(got), timeout=60))
    abandoned = asyncio.create_task(pair.to_a.receive(1, buffer(bytearray(3_000_000)), timeout=30))
    await asyncio.sleep(0.01)  # until it has begun
    abandoned.cancel()
    await asyncio.wait((abandoned,))
    await moving
    assert got == data
    for tag in range(20):
        await asyncio.gather(
            to_a.send(tag, buffer(data[:999]), timeout=60), to_b.receive(tag, buffer(got[:999]), timeout=60)
        )
    with pytest.raises(LinkError):
        await pair.to_a.send(2, buffer(bytes(8)), timeout=1)


async def test_equal_tags_of_two_channels_do_not_mix(pair: Pair) -> None:
    peers = [
        (
            await pair.a.connect(pair.b.address, timeout=60, channel=n),
            await pair.b.connect(pair.a.address, timeout=60, channel=n),
        )
        for n in (1, 2)
    ]
    got = [bytearray(9000), bytearray(9000)]
    receives = [to_a.receive(5, buffer(got[n]), timeout=60) for n, (_, to_a) in enumerate(peers)]
    sends = [to_b.send(5, buffer(bytes([n]) * 9000), timeout=60) for n, (to_b, _) in reversed(list(enumerate(peers)))]
    await asyncio.gather(*sends, *receives)
    assert got == [bytes(9000), b"\x01" * 9000]


async def test_channels_that_were_closed_leave_nothing_behind(pair: Pair) -> None:
    before = count_descriptors()
    for channel in range(1, 9):
        to_b = await pair.a.connect(pair.b.address, timeout=60, channel=channel)
        to_a = await pair.b.connect(pair.a.address, timeout=60, channel=channel)
        await asyncio.gather(
            to_b.send(1, buffer(b"x" * 50_000), timeout=60), to_a.receive(1, buffer(bytearray(50_000)), timeout=60)
        )
        await to_a.close()
        async with asyncio.timeout(60):
            with pytest.raises(LinkError):
                await to_b.receive(1, buffer(bytearray(8)), timeout=60)
    await until(lambda: count_descriptors() <= before + 2)  # UCX closes its sockets in a while


CHANNELS = range(1, 6)


async def open_channels(near: Link, far: Link, channels: Iterable[int]) -> dict[int, Peer]:
    return {channel: await near.connect(far.address, timeout=60, channel=channel) for channel in channels}


async def exchange(left: Peer, right: Peer) -> None:
    for near, far in ((left, right), (right, left)):
        data, got = random.Random(1).randbytes(200_000), bytearray(200_000)
        await asyncio.gather(near.send(1, buffer(data), timeout=60), far.receive(1, buffer(got), timeout=60))
        assert got == data


@pytest.mark.parametrize("at_once", [True, False], ids=["at the same moment", "one after the other"])
async def test_channels_opened_in_opposite_order_work_and_end_each_for_itself(
    settings: LinkSettings, at_once: bool
) -> None:
    a, b = await open_link(settings), await open_link(settings)
    opening = open_channels(a, b, CHANNELS), open_channels(b, a, reversed(CHANNELS))
    to_b, to_a = await asyncio.gather(*opening) if at_once else [await one for one in opening]
    left = list(CHANNELS)
    for channel in (1, 5, 2, 4):
        for other in left:
            await exchange(to_b[other], to_a[other])
        left.remove(channel)
        near, far = (to_b, to_a) if channel % 2 else (to_a, to_b)
        await near[channel].close()
        await asyncio.sleep(0.1)  # until the other end has heard of it
        with pytest.raises(LinkError):
            await far[channel].receive(2, buffer(bytearray(8)), timeout=60)
    await exchange(to_b[3], to_a[3])
    await a.close()
    await b.close()


async def test_a_receiver_that_closes_with_its_last_message_leaves_other_channels_alone(settings: LinkSettings) -> None:
    """It closes before the sender has heard that the message was taken."""
    a, b = await open_link(settings), await open_link(settings)
    to_b = await open_channels(a, b, CHANNELS)
    to_a = await open_channels(b, a, reversed(CHANNELS))
    message = buffer(bytearray(4 << 20))

    async def take(channel: int) -> None:
        await to_a[channel].receive(1, buffer(bytearray(4 << 20)), timeout=60)
        await to_a[channel].close()

    others = [asyncio.create_task(take(channel)) for channel in (5, 4)]
    for channel in (1, 2):
        await asyncio.gather(to_b[channel].send(1, message, timeout=60), take(channel))
        await asyncio.sleep(0.01)  # until the other end has heard of it
    await asyncio.gather(*others, *(to_b[channel].send(1, message, timeout=60) for channel in (5, 4)))
    await a.close()
    await b.close()
