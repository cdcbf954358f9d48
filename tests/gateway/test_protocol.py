"""A client that does not read its answer is cut off, and no other client notices."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from livescale.services.gateway.protocol import MOST_HELD_BYTES, JoinedWrites
from tests.gateway.conftest import ServedGateway, eventually, port_of, serve_gateway

# More than the kernel and the server keep for a client: 16 choices of 200 events.
LONG = {"model": "tiny", "prompt": [[5]] * 16, "max_tokens": 200, "stream": True, "return_token_ids": True}
SHORT = {"model": "tiny", "prompt": "abc", "max_tokens": 9, "return_token_ids": True}


@asynccontextmanager
async def asking(served: ServedGateway, body: object, version: str = "HTTP/1.1") -> AsyncIterator[socket.socket]:
    """Open a connection with a small window, and send its request."""
    data = json.dumps(body).encode()
    head = f"POST /v1/completions {version}\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(client, ("127.0.0.1", port_of(served)))
        await loop.sock_sendall(client, head + data)
        yield client


async def read_all(client: socket.socket) -> bytes:
    """Until the server's end; raises ConnectionResetError where it cut the connection."""
    read, loop = bytearray(), asyncio.get_running_loop()
    async with asyncio.timeout(60):
        while data := await loop.sock_recv(client, 65536):
            read += data
    return bytes(read)


async def test_a_client_that_never_reads_is_cut_off_and_its_requests_are_cancelled(checkpoint: Path) -> None:
    never = asyncio.get_running_loop().create_future()
    async with serve_gateway(checkpoint, unread_timeout_s=0.2) as served, asking(served, LONG) as client:
        served.cluster.before = lambda request, position: never if position == 190 else None
        await eventually(lambda: len(served.cluster.submitted) == 16)
        status, answer = await served.post("/v1/completions", SHORT)
        assert (status, answer["choices"][0]["token_ids"]) == (200, [65, 66, 67] * 3)
        await eventually(lambda: len(served.cluster.cancelled) == 16)
        with suppress(ConnectionResetError):
            assert b"[DONE]" not in await read_all(client)


async def test_a_client_that_reads_again_after_all_is_told_that_it_was_given_up(checkpoint: Path) -> None:
    never = asyncio.get_running_loop().create_future()
    async with serve_gateway(checkpoint, unread_timeout_s=0.5) as served, asking(served, LONG) as client:
        served.cluster.before = lambda request, position: never if position == 190 else None
        await eventually(lambda: len(served.cluster.cancelled) == 16)
        read = await read_all(client)
        assert read.endswith(b"\n\n\r\n0\r\n\r\n")
        last = read.rpartition(b"data: ")[2].partition(b"\n")[0]
        assert json.loads(last)["error"]["code"] == "timeout"
        assert b"left unread for 0.5 s" in last
        assert b"[DONE]" not in read


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_of_the_older_http_gets_no_chunks(served: ServedGateway, stream: bool) -> None:
    async with asking(served, {**SHORT, "stream": stream}, "HTTP/1.0") as client:
        head, _, body = (await read_all(client)).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body.startswith(b"data: {") == stream
    assert body.endswith(b"data: [DONE]\n\n") == stream
    assert stream or json.loads(body)["choices"][0]["token_ids"] == [65, 66, 67] * 3


async def test_a_client_that_pauses_and_reads_on_gets_everything(checkpoint: Path) -> None:
    async with serve_gateway(checkpoint, unread_timeout_s=5.0) as served, asking(served, LONG) as client:
        await eventually(lambda: len(served.cluster.submitted) == 16)
        await asyncio.sleep(0.3)  # the pause
        read, loop = b"", asyncio.get_running_loop()
        async with asyncio.timeout(60):
            while b"[DONE]" not in read:
                read += await loop.sock_recv(client, 65536)
        assert read.count(b'"index":') == 16 * 200


class WrittenPieces(asyncio.Transport):
    """A transport that keeps what is written to it, piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


async def test_what_is_written_in_one_turn_leaves_in_one_piece_and_before_the_end() -> None:
    transport = WrittenPieces()
    joined = JoinedWrites(transport, transport.close, asyncio.get_running_loop())
    joined.write(b"head ")
    joined.write(b"event ")
    assert transport.pieces == []
    await asyncio.sleep(0)
    joined.write(b"next ")
    await asyncio.sleep(0)
    joined.write(b"last ")
    joined.write(b"end")
    joined.close()
    joined.write(b"too late")
    await asyncio.sleep(0)
    assert transport.pieces == [b"head event ", b"next ", b"last end"]


async def test_a_large_piece_does_not_wait_for_the_end_of_the_turn() -> None:
    transport = WrittenPieces()
    joined = JoinedWrites(transport, transport.close, asyncio.get_running_loop())
    joined.write(b"head ")
    joined.write(bytes(MOST_HELD_BYTES))
    assert transport.pieces == [b"head " + bytes(MOST_HELD_BYTES)]
