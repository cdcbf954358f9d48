"""However the bytes of messages arrive, each is delivered once and in order, and a bad one disturbs no other."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.transport import TcpTransport

from livescale.shared.bus.client import Arrived, Deliver, SturdyClient, second_handle

OURS, THEIRS = 1, 2  # numbers of subscriptions: messages of the second one are nats-py's business
HEAD = b"NATS/1.0\r\nEpoch: 3\r\n\r\n"

# Data that looks like the protocol is still data.
datas = st.sampled_from([b"", b"x", b"\r\n", b"MSG a 1 5\r\n", b"PING\r\n", b"x" * 300])
messages = st.builds(Arrived, st.just("a.b"), st.sampled_from(["", "_INBOX.1"]), datas, st.sampled_from([None, HEAD]))
others = st.sampled_from([b"+OK\r\n", b"PONG\r\n", b"MSG c 2 3\r\nxyz\r\n", b"MSG c 99 1\r\nx\r\n"])


def sent(message: Arrived, number: int = OURS) -> bytes:
    """The message as the server sends it to this subscription."""
    reply, head = message.reply.encode() + b" " if message.reply else b"", message.head or b""
    sizes = b"%d %d" % (len(head), len(head) + len(message.data)) if head else b"%d" % len(message.data)
    kind = b"HMSG" if head else b"MSG"
    return b"%s %s %d %s%s\r\n%s%s\r\n" % (
        kind,
        message.subject.encode(),
        number,
        reply,
        sizes,
        head,
        message.data,
    )


async def read(pieces: list[bytes], deliver: Deliver) -> list[Exception]:
    """Have a client read these bytes as they arrive, one after the other. Returns the errors that it told of."""
    errors: list[Exception] = []
    client, reader = SturdyClient(errors.append), asyncio.StreamReader()
    transport = TcpTransport()  # type: ignore[no-untyped-call]
    transport._io_reader, client._transport = reader, transport
    client._delivers[OURS] = deliver
    reading = asyncio.create_task(client._read_loop())
    for piece in pieces:
        await asyncio.sleep(0)
        reader.feed_data(piece)
    for _ in range(3):
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    return errors


@given(st.lists(st.one_of(messages, others)), st.lists(st.integers(0, 2_000)))
def test_messages_come_whole_and_in_order_however_they_were_cut(stream: list[Arrived | bytes], cuts: list[int]) -> None:
    data = b"".join(sent(one) if isinstance(one, Arrived) else one for one in stream)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    arrived: list[Arrived] = []
    assert not asyncio.run(read([data[start:stop] for start, stop in pairwise(places)], arrived.append))
    wanted = [one for one in stream if isinstance(one, Arrived)]
    assert [(one.reply, one.data, one.head or None) for one in arrived] == [
        (one.reply, one.data, one.head) for one in wanted
    ]


@pytest.mark.parametrize("cut", [5, None])
async def test_a_message_that_its_reader_fails_at_is_told_of_and_the_next_one_comes(cut: int | None) -> None:
    came: list[bytes] = []

    def deliver(message: Arrived) -> None:
        came.append(message.data)
        if message.data == b"bad":
            raise ValueError("bad")

    data = b"".join(sent(Arrived("a.b", "", one, None)) for one in (b"bad", b"good"))
    pieces = [data] if cut is None else [data[:cut], data[cut:]]
    assert [str(error) for error in await read(pieces, deliver)] == ["bad"]
    assert came == [b"bad", b"good"]


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[SturdyClient, asyncio.StreamReader]]:
    """A client whose connection ends at this reader, which takes little before it is read."""
    ours, theirs = socket.socketpair()
    peer, peer_writer = await asyncio.open_connection(sock=theirs, limit=1)
    reader, writer = await asyncio.open_connection(sock=ours)
    client, transport = SturdyClient(lambda error: None), TcpTransport()  # type: ignore[no-untyped-call]
    transport._io_reader, transport._io_writer, client._transport = reader, writer, transport
    reading = asyncio.create_task(client._read_loop())
    await asyncio.sleep(0)
    try:
        yield client, peer
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        for one in (writer, peer_writer):
            one.transport.abort()


async def test_what_the_kernel_does_not_take_at_once_follows_in_order() -> None:
    commands = [b"%d" % number * 20_000 for number in range(10)]
    async with connected() as (client, peer), asyncio.timeout(60):
        written: list[bytes] = []
        while client.write(commands[len(written) % 10]):  # until too much waits
            written.append(commands[len(written) % 10])
        whole = b"".join(written)
        arrived = await peer.readexactly(len(whole) - 1)  # what waits leaves while it is read
        assert client.write(b"last")
        assert arrived + await peer.readexactly(5) == whole + b"last"


async def test_the_first_bytes_leave_before_the_event_loop_has_its_turn() -> None:
    """They need not wait for it, and a thread that computes goes on meanwhile."""
    async with connected() as (client, peer):
        theirs = peer._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        assert client.write(b"now")
        with socket.socket(fileno=os.dup(theirs.fileno())) as end:
            assert end.recv(10) == b"now"


async def test_nothing_is_written_to_a_connection_that_has_ended() -> None:
    async with connected() as (client, _):
        assert client.write(b"x")
        assert client._socket is not None
        client._socket.abort()
        assert not client.write(b"y")


def test_an_encrypted_connection_is_not_written_past() -> None:
    class Encrypted(asyncio.WriteTransport):
        def get_extra_info(self, name: str, default: object = None) -> object:
            return {"sslcontext": ssl.create_default_context()}.get(name, default)

    assert second_handle(Encrypted()) is None
