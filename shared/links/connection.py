"""A TCP connection used through the event loop's socket calls: bytes go straight from and to the caller's buffers."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress

FRAME = struct.Struct(">QQ")  # tag, size in bytes
MAX_ASKED = 4096  # messages a peer may ask for and not yet have

ACCEPT_PAUSE_SECONDS = 0.1


async def accept_all(listener: socket.socket) -> AsyncIterator[socket.socket]:
    """Yield the socket of each peer that connects, for ever."""
    while True:
        try:
            sock, _ = await asyncio.get_running_loop().sock_accept(listener)
        except OSError:  # no descriptor is free: later there may be one
            await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
        else:
            yield sock


class Connection:
    """A TCP connection with one reading task, which closes it, and any number of writers."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._writing = asyncio.Lock()

    async def write(self, *parts: bytes | memoryview) -> None:
        async with self._writing:
            for part in parts:
                await self._loop.sock_sendall(self._sock, part)

    async def read_into(self, view: memoryview) -> None:
        while view:
            received = await self._loop.sock_recv_into(self._sock, view)
            if not received:
                raise ConnectionResetError
            view = view[received:]

    async def read(self, size_bytes: int) -> bytes:
        data = bytearray(size_bytes)
        await self.read_into(memoryview(data))
        return bytes(data)

    def shut(self) -> None:
        """End the connection, so that tasks that read or write wake up and fail."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        self.shut()
        async with self._writing:
            self._sock.close()


class InboundConnection:
    """A connection that a peer has opened: it tells what the peer asks for, and takes the answers."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._asked: dict[int, asyncio.Future[int]] = {}

    def asked(self, tag: int) -> asyncio.Future[int]:
        """The size the peer asks for under `tag`, once it does."""
        return self._asked.setdefault(tag, asyncio.get_running_loop().create_future())

    async def listen(self) -> None:
        """Note what the peer asks for until the connection ends. Raises OSError."""
        while len(self._asked) <= MAX_ASKED:
            tag, size_bytes = FRAME.unpack(await self.connection.read(FRAME.size))
            future = self.asked(tag)
            if future.done():
                raise ConnectionError(f"asked twice for {tag:#x}")
            future.set_result(size_bytes)

    def answered(self, tag: int) -> None:
        del self._asked[tag]
