"""The link contract, kept by both transports."""

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from livescale.shared.links.contract import Buffer, LinkError
from livescale.shared.links.open import open_link
from livescale.shared.runtime.settings import LinkSettings
from tests.shared.links.conftest import Pair, connected, count_descriptors, until
from tests.shared.links.peer_process import CHUNK


def buffer(data: bytes | bytearray) -> Buffer:
    return Buffer(memoryview(data))


@pytest.mark.parametrize("size", [1, 7, 4095, 8192, 65_537, 5_000_003])
async def test_odd_sizes_arrive_unchanged(pair: Pair, size: int) -> None:
    sent, got = random.Random(size).randbytes(size), bytearray(size)
    await asyncio.gather(pair.to_b.send(1, buffer(sent), timeout=60), pair.to_a.receive(1, buffer(got), timeout=60))
    assert got == sent


async def test_messages_are_matched_by_tag_in_any_order(pair: Pair) -> None:
    tags = [random.Random(tag).getrandbits(64) for tag in range(40)]
    got = {tag: bytearray(20_000) for tag in tags}
    sends = [pair.to_b.send(tag, buffer(tag.to_bytes(8) * 2500), timeout=60) for tag in tags]
    receives = [pair.to_a.receive(tag, buffer(got[tag]), timeout=60) for tag in reversed(tags)]
    await asyncio.gather(*sends, *receives)
    assert all(data == tag.to_bytes(8) * 2500 for tag, data in got.items())


async def test_a_message_nobody_asks_for_holds_back_no_other(pair: Pair) -> None:
    early = asyncio.create_task(pair.to_b.send(1, buffer(bytes(1 << 20)), timeout=60))
    got = bytearray(100_000)
    await asyncio.gather(
        pair.to_b.send(2, buffer(b"x" * 100_000), timeout=60), pair.to_a.receive(2, buffer(got), timeout=60)
    )
    assert got == b"x" * 100_000
    await pair.to_a.receive(1, buffer(bytearray(1 << 20)), timeout=60)
    await early


async def test_equal_tags_of_two_peers_do_not_mix(pair: Pair, settings: LinkSettings) -> None:
    c = await open_link(settings)
    from_c, c_to_b = await pair.b.connect(c.address, timeout=60), await c.connect(pair.b.address, timeout=60)
    got_a, got_c = bytearray(9000), bytearray(9000)
    await asyncio.gather(
        c_to_b.send(5, buffer(b"c" * 9000), timeout=60),
        pair.to_b.send(5, buffer(b"a" * 9000), timeout=60),
        pair.to_a.receive(5, buffer(got_a), timeout=60),
        from_c.receive(5, buffer(got_c), timeout=60),
    )
    assert (got_a, got_c) == (b"a" * 9000, b"c" * 9000)
    await c.close()


async def test_both_ends_may_send_at_once(pair: Pair) -> None:
    data = bytes(3_000_000)
    await asyncio.gather(
        *(peer.send(1, buffer(data), timeout=60) for peer in (pair.to_a, pair.to_b)),
        *(peer.receive(1, buffer(bytearray(3_000_000)), timeout=60) for peer in (pair.to_a, pair.to_b)),
    )


async def test_connecting_again_gives_the_peer_that_is_there(pair: Pair) -> None:
    assert await pair.a.connect(pair.b.address, timeout=60) is pair.to_b


async def test_a_message_of_another_size_never_passes_for_the_one_asked_for(pair: Pair) -> None:
    send = asyncio.create_task(pair.to_b.send(1, buffer(bytes(10)), timeout=0.3))
    with pytest.raises(LinkError):
        await pair.to_a.receive(1, buffer(bytearray(11)), timeout=0.3)
    await asyncio.wait((send,))
    send.exception()


async def test_a_silent_peer_is_a_link_error_at_the_deadline(pair: Pair) -> None:
    began = time.perf_counter()
    with pytest.raises(LinkError, match=r"receive 0x7 took more than 0\.2 s"):
        await pair.to_a.receive(7, buffer(bytearray(100)), timeout=0.2)
    assert time.perf_counter() - began < 30


async def test_a_receive_that_is_cancelled_closes_the_peer_at_both_ends(pair: Pair) -> None:
    waiting = asyncio.create_task(pair.to_b.receive(9, buffer(bytearray(100_000)), timeout=30))
    receive = asyncio.create_task(pair.to_a.receive(7, buffer(bytearray(100)), timeout=30))
    await asyncio.sleep(0.01)  # until both have begun
    receive.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receive
    with pytest.raises(LinkError):
        await pair.to_a.send(1, buffer(bytes(8)), timeout=1)
    async with asyncio.timeout(60):
        with pytest.raises(LinkError, match="the peer"):
            await waiting


async def test_a_closed_pair_connects_anew(pair: Pair) -> None:
    await pair.to_b.close()
    async with asyncio.timeout(60):
        with pytest.raises(LinkError):
            await pair.to_a.receive(1, buffer(bytearray(8)), timeout=60)
    to_b = await pair.a.connect(pair.b.address, timeout=60)
    to_a = await pair.b.connect(pair.a.address, timeout=60)
    got = bytearray(100_000)
    await asyncio.gather(to_b.send(1, buffer(b"x" * 100_000), timeout=60), to_a.receive(1, buffer(got), timeout=60))
    assert got == b"x" * 100_000


async def test_closing_twice_is_allowed_and_ends_what_is_under_way(settings: LinkSettings) -> None:
    pair = await connected(settings)
    waiting = asyncio.create_task(pair.to_b.receive(1, buffer(bytearray(8)), timeout=30))
    await asyncio.sleep(0)
    await pair.a.close()
    with pytest.raises(LinkError):
        await waiting
    await pair.a.close()
    await pair.b.close()
    with pytest.raises(LinkError):
        await pair.a.connect(pair.b.address, timeout=1)


async def test_links_leave_no_descriptor_and_no_task(settings: LinkSettings) -> None:
    async def use() -> None:
        pair = await connected(settings)
        await asyncio.gather(
            pair.to_b.send(1, buffer(bytes(100_000)), timeout=60),
            pair.to_a.receive(1, buffer(bytearray(100_000)), timeout=60),
        )
        await pair.a.close()
        await pair.b.close()

    await use()  # libraries open descriptors of their own once
    descriptors, tasks = count_descriptors(), len(asyncio.all_tasks())
    for _ in range(5):
        await use()
    await until(lambda: count_descriptors() <= descriptors)  # UCX closes its sockets in a while
    assert len(asyncio.all_tasks()) == tasks


@pytest.mark.parametrize("address", [b"", b"nonsense", b"ucx:12345678damaged", b"tcp:127.0.0.1", b"tcp:host:port"])
async def test_an_address_that_is_none_is_refused(pair: Pair, address: bytes) -> None:
    with pytest.raises(LinkError, match="is not the address of a"):
        await pair.a.connect(address, timeout=1)


async def test_a_process_that_ended_is_a_link_error(settings: LinkSettings) -> None:
    a, gone = await open_link(settings), await open_link(settings)
    address = gone.address
    await gone.close()
    with pytest.raises(LinkError, match="connect"):
        await a.connect(address, timeout=60)
    await a.close()


@pytest.fixture
def process(settings: LinkSettings) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.shared.links.peer_process", settings.transport]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        yield child
        child.kill()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_process_that_dies_or_freezes_in_mid_transfer_fails_what_is_under_way(
    settings: LinkSettings, process: "subprocess.Popen[str]", sign: signal.Signals
) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    link = await open_link(settings)
    address = bytes.fromhex(await asyncio.to_thread(process.stdout.readline))
    process.stdin.write(link.address.hex() + "\n")
    process.stdin.flush()
    peer = await link.connect(address, timeout=60)
    for tag in range(3):
        await peer.receive(tag, buffer(bytearray(CHUNK)), timeout=60)
    process.send_signal(sign)
    began = time.perf_counter()
    timeout = 600 if sign is signal.SIGKILL else 1  # dead peers are not waited for
    operations = [peer.receive(1_000_000 + i, buffer(bytearray(CHUNK)), timeout=timeout) for i in range(4)]
    operations += [peer.send(i, buffer(bytes(CHUNK)), timeout=timeout) for i in range(4)]
    results = await asyncio.gather(*operations, return_exceptions=True)
    assert [type(result) for result in results] == [LinkError] * 8
    assert time.perf_counter() - began < 60
    await link.close()


async def test_a_peer_that_waits_for_a_slow_process_leaves_it_the_core(
    settings: LinkSettings, process: "subprocess.Popen[str]"
) -> None:
    assert process.stdout is not None
    link = await open_link(settings)
    address = bytes.fromhex(await asyncio.to_thread(process.stdout.readline))
    process.send_signal(signal.SIGSTOP)
    used = time.process_time()
    with suppress(LinkError):  # a socket connects even so
        peer = await link.connect(address, timeout=0.5)
        await peer.receive(1, buffer(bytearray(1)), timeout=0.5)
    assert time.process_time() - used < 0.2
    await link.close()
