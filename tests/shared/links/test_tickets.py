"""A process that does not know a channel's secret gets nothing from a link and sends nothing into it."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.links import sockets
from livescale.shared.links.contract import Buffer, Link, LinkError
from livescale.shared.links.open import open_link
from livescale.shared.links.sockets import HELLO, MAGIC
from livescale.shared.links.tickets import hash_key, message_tag, proof
from livescale.shared.runtime.settings import LinkSettings
from tests.shared.links.conftest import count_descriptors, until

SECRET, OTHER = b"of this plan", b"of another plan"

ends = st.tuples(st.binary(max_size=64), st.integers(0, 2**64 - 1), st.binary(max_size=40), st.binary(max_size=40))


def buffer(data: bytes | bytearray) -> Buffer:
    return Buffer(memoryview(data))


@given(one=ends, other=ends)
def test_a_proof_is_of_one_secret_channel_and_direction_only(
    one: tuple[bytes, int, bytes, bytes], other: tuple[bytes, int, bytes, bytes]
) -> None:
    assert (proof(*one) == proof(*other)) == (one == other)


def test_a_tag_changes_with_all_that_it_stands_for() -> None:
    key = hash_key(SECRET)
    tags = [message_tag(key, 1, 2, 3, 4), message_tag(hash_key(OTHER), 1, 2, 3, 4)]
    tags += [message_tag(key, *numbers) for numbers in ((9, 2, 3, 4), (1, 9, 3, 4), (1, 2, 9, 4), (1, 2, 3, 9))]
    assert len(set(tags)) == len(tags)
    assert all(0 <= tag < 2**64 for tag in tags)


async def move(
    a: Link, b: Link, secrets: tuple[bytes, bytes], data: bytes, *, channel: int = 7, seconds: float = 5
) -> bytes:
    """Send `data` from a to b, each with its secret. Raises LinkError."""
    got = bytearray(len(data))
    to_b = await a.connect(b.address, timeout=60, channel=channel, secret=secrets[0])
    to_a = await b.connect(a.address, timeout=60, channel=channel, secret=secrets[1])
    results = await asyncio.gather(
        to_b.send(1, buffer(data), timeout=seconds),
        to_a.receive(1, buffer(got), timeout=seconds),
        return_exceptions=True,
    )
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return bytes(got)


@pytest.fixture
async def pair(settings: LinkSettings) -> AsyncIterator[tuple[Link, Link]]:
    a, b = await open_link(settings), await open_link(settings)
    yield a, b
    await a.close()
    await b.close()


async def test_both_ends_of_a_plan_find_each_other(pair: tuple[Link, Link]) -> None:
    data = random.Random(1).randbytes(300_000)
    assert await move(*pair, (SECRET, SECRET), data) == data


async def test_a_peer_with_the_secret_of_another_plan_gets_nothing(pair: tuple[Link, Link]) -> None:
    with pytest.raises(LinkError):
        await move(*pair, (SECRET, OTHER), b"parameters" * 1000, seconds=0.5)
    data = b"parameters" * 1000
    assert await move(*pair, (SECRET, SECRET), data, channel=8) == data


async def strange(link: Link, hello: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(link.address.rpartition(b":")[2]))
    writer.write(hello)
    return reader, writer


async def is_shown_out(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(60):
        with suppress(ConnectionResetError):
            return await reader.read() == b""
        return True


async def test_a_peer_that_takes_another_s_address_gets_neither_its_parameters_nor_its_place() -> None:
    a, b = [await open_link(LinkSettings(transport="socket")) for _ in "ab"]
    false = HELLO.pack(7, proof(OTHER, 7, b.address, a.address), len(b.address)) + b.address
    impostors = [await strange(a, MAGIC + false) for _ in range(3)]
    data = random.Random(2).randbytes(100_000)
    assert await move(a, b, (SECRET, SECRET), data) == data
    impostors.append(await strange(a, MAGIC + false))
    for reader, writer in impostors:
        assert await is_shown_out(reader)
        writer.close()
    to_b = await a.connect(b.address, timeout=60, channel=7, secret=SECRET)
    to_a = await b.connect(a.address, timeout=60, channel=7, secret=SECRET)
    got = bytearray(10)
    await asyncio.gather(to_b.send(2, buffer(b"0123456789"), timeout=60), to_a.receive(2, buffer(got), timeout=60))
    assert got == b"0123456789"
    await a.close()
    await b.close()


async def test_strangers_have_a_deadline_whatever_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "HELLO_SECONDS", 0.1)
    monkeypatch.setattr(sockets, "TICKET_SECONDS", 0.1)
    link = await open_link(LinkSettings(transport="socket"))
    chance, before = random.Random(3), count_descriptors()
    unknown = MAGIC + HELLO.pack(1, bytes(32), 5) + b"tcp:x"
    sayings = [b"", MAGIC, MAGIC[:3], unknown, unknown[:-2], MAGIC + HELLO.pack(1, bytes(32), 65535)]
    sayings += [chance.randbytes(chance.randrange(1, 200)) for _ in range(30)]
    strangers = [await strange(link, saying) for saying in sayings]
    for reader, writer in strangers:
        assert await is_shown_out(reader)
        writer.close()
        with suppress(ConnectionResetError):
            await writer.wait_closed()
    await until(lambda: count_descriptors() <= before)
    await link.close()


async def test_the_oldest_of_too_many_strangers_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MAX_STRANGERS", 3)
    link = await open_link(LinkSettings(transport="socket"))
    strangers = [await strange(link, b"") for _ in range(4)]
    assert await is_shown_out(strangers[0][0])
    for _, writer in strangers:
        writer.close()
    await link.close()


async def test_garbage_on_the_control_tag_closes_nobodys_channel() -> None:
    from ucxx._lib.arr import Array

    from livescale.shared.links.ucx import UcxLink, worker_address
    from livescale.shared.links.ucx_kept import CONTROL, GOODBYE, WORD

    a, b, stranger = [await UcxLink.open("127.0.0.1") for _ in range(3)]
    data = b"parameters" * 1000
    assert await move(a, b, (SECRET, SECRET), data) == data
    peer = await stranger.connect(a.address, timeout=60)
    of_b = (await a.connect(b.address, timeout=60, channel=7, secret=SECRET)).theirs
    for word in (WORD.pack(GOODBYE, of_b, 7, 0), b"", b"x", bytes(WORD.size), GOODBYE, bytes(500)):
        memory = Array(memoryview(word or bytearray(1)))
        await stranger._engine.watch(peer.endpoint.ucx.tag_send(memory, CONTROL), memory)
    await asyncio.sleep(0.1)  # time in which these words would do harm
    assert worker_address(a.address)
    got = bytearray(10)
    to_b, to_a = a._peers[b.address, 7], b._peers[a.address, 7]
    await asyncio.gather(to_b.send(2, buffer(b"0123456789"), timeout=60), to_a.receive(2, buffer(got), timeout=60))
    assert got == b"0123456789"
    for link in (a, b, stranger):
        await link.close()
