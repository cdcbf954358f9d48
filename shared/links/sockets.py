"""`SocketLink`: the link contract over plain TCP, for machines without UCX.

Each end of a pair connects to the other. On its own connection an end asks for (tag, size), and the other one answers
with (tag, size, bytes). So bytes move only into a buffer that was posted for them, and nothing unexpected is ever
buffered. A message that the receiver never asks for holds back its sender alone.

A connection counts once its hello has proved that the peer knows the channel's secret. Until then it is a stranger,
with a deadline.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine

from livescale.shared.links.connection import FRAME, Connection, InboundConnection, accept_all
from livescale.shared.links.contract import Buffer, LinkError
from livescale.shared.links.link_path import SOCKETS
from livescale.shared.links.tickets import PROOF_BYTES, End, Tickets, is_proof, proof

SCHEME = b"tcp:"
HELLO = struct.Struct(f">Q{PROOF_BYTES}sH")  # after the magic: channel, proof, length of the dialler's address
MAGIC = b"lvscale3"
HELLO_SECONDS = 5.0
TICKET_SECONDS = 30.0  # from a peer's hello until we are told of the same plan
MAX_STRANGERS = 256
GONE = "the peer is gone"


class SocketPeer:
    """A process that this one dialled on a channel. The peer is lost when either connection of the pair ends."""

    path = SOCKETS

    def __init__(self, connection: Connection, on_lost: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        self._outgoing = connection
        self._on_lost = on_lost
        self._incoming: asyncio.Future[InboundConnection] = loop.create_future()
        self._posted: dict[int, tuple[memoryview, asyncio.Future[None]]] = {}
        self._lost: asyncio.Future[str] = loop.create_future()
        self._reader = asyncio.create_task(self._read())

    def attach(self, incoming: InboundConnection) -> None:
        """Take the connection that the peer dialled: from now on it can be answered."""
        self._incoming.set_result(incoming)

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        await self._within(timeout, f"send {tag:#x}", self._answer(tag, buffer))

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        await self._within(timeout, f"receive {tag:#x}", self._ask(tag, buffer))

    async def close(self) -> None:
        self.lose("closed")
        await asyncio.wait((self._reader,))

    def lose(self, reason: str) -> None:
        """End both connections; every operation under way fails with `reason`."""
        if self._lost.done():
            return
        self._lost.set_result(reason)
        self._outgoing.shut()
        if self._incoming.done():
            self._incoming.result().connection.shut()
        self._reader.cancel()
        self._on_lost()

    async def _within(self, timeout: float, what: str, operation: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(operation)
        try:
            await asyncio.wait((task, self._lost), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._abandon(task, f"{what} was cancelled")
            raise
        if not task.done():
            await self._abandon(task, f"{what} took more than {timeout:g} s")
            raise LinkError(f"{what}: {self._lost.result()}")
        try:
            task.result()
        except (OSError, LinkError) as error:
            await self._abandon(task, GONE if isinstance(error, OSError) else str(error))
            raise LinkError(f"{what}: {self._lost.result()}") from None

    async def _abandon(self, task: asyncio.Task[None], reason: str) -> None:
        """Lose the peer, and wait until nothing touches the buffer of the operation any more."""
        self.lose(reason)
        task.cancel()
        await asyncio.wait((task, self._reader))

    async def _answer(self, tag: int, buffer: Buffer) -> None:
        incoming = await asyncio.shield(self._incoming)
        asked = await incoming.asked(tag)
        if asked != buffer.size_bytes:
            raise LinkError(f"the peer asked for {asked} bytes, but this end has {buffer.size_bytes}")
        incoming.answered(tag)
        await incoming.connection.write(FRAME.pack(tag, asked), _host_view(buffer))

    async def _ask(self, tag: int, buffer: Buffer) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._posted[tag] = (_host_view(buffer), done)
        await self._outgoing.write(FRAME.pack(tag, buffer.size_bytes))
        await done

    async def _read(self) -> None:
        try:
            while True:
                tag, _ = FRAME.unpack(await self._outgoing.read(FRAME.size))
                view, done = self._posted[tag]
                await self._outgoing.read_into(view)
                del self._posted[tag]
                done.set_result(None)
        except (OSError, KeyError):
            asyncio.get_running_loop().call_soon(self.lose, GONE)
        finally:
            await self._outgoing.close()


class SocketLink:
    """A link over TCP. Make it by `SocketLink.open` inside a running event loop."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        host, port = listener.getsockname()[:2]
        self.address = SCHEME + f"{host}:{port}".encode()
        self._peers: dict[End, SocketPeer] = {}
        self._incoming: dict[End, InboundConnection] = {}
        self._tickets = Tickets()
        self._serving: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._accepting = asyncio.create_task(self._accept())
        self._connecting = asyncio.Lock()
        self._closed = False

    @classmethod
    async def open(cls, bind: str) -> "SocketLink":
        """Listen at `bind`. Raises LinkError where it is not an address of this machine that others can dial."""
        if bind in ("", "0.0.0.0", "::"):
            raise LinkError(
                f"bind: {bind!r} is not an address that others can reach; give an IP address of this machine"
            )
        try:
            listener = socket.create_server((bind, 0), family=socket.AF_INET6 if ":" in bind else socket.AF_INET)
        except OSError as error:
            raise LinkError(f"bind: cannot listen on {bind}: {error}") from error
        listener.setblocking(False)
        return cls(listener)

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> SocketPeer:
        host, port = _host_and_port(address)
        if self._closed:
            raise LinkError("connect: this link is closed")
        try:
            async with asyncio.timeout(timeout), self._connecting:
                peer = self._peers.get((address, channel))
                return peer or await self._dial((address, channel), host, port, secret)
        except OSError as error:  # TimeoutError included
            raise LinkError(f"connect to {host}:{port}: {error or 'timed out'}") from error

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.sleep(0)  # a task cancelled before its first step would not close its connection
        for peer in list(self._peers.values()):
            await peer.close()
        tasks = (self._accepting, *self._serving)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._listener.close()

    async def _dial(self, end: End, host: str, port: int, secret: bytes) -> SocketPeer:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
        except (OSError, asyncio.CancelledError):
            sock.close()
            raise
        connection = Connection(sock)
        peer = SocketPeer(connection, lambda: self._forget(end))
        # In one step, or a connection that comes meanwhile would not be attached.
        self._peers[end] = peer
        if end in self._incoming:
            peer.attach(self._incoming[end])
        self._tickets.know(end, secret)
        address, channel = end
        hello = MAGIC + HELLO.pack(channel, proof(secret, channel, self.address, address), len(self.address))
        try:
            await asyncio.sleep(0)  # the peer's reader runs, and will close the connection
            await connection.write(hello, self.address)
        except (OSError, asyncio.CancelledError):
            peer.lose("no hello")
            raise
        return peer

    async def _accept(self) -> None:
        async for sock in accept_all(self._listener):
            task = asyncio.create_task(self._serve(Connection(sock)))
            self._serving.add(task)
            self._strangers[task] = None
            task.add_done_callback(self._served)
            if len(self._strangers) > MAX_STRANGERS:
                next(iter(self._strangers)).cancel()

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        self._strangers.pop(task, None)

    async def _serve(self, connection: Connection) -> None:
        try:
            end = await self._welcome(connection)
            task = asyncio.current_task()
            assert task is not None
            del self._strangers[task]
            await self._listen(end, InboundConnection(connection))
        except OSError:
            pass  # the peer is gone, or was a stranger
        finally:
            await connection.close()

    async def _welcome(self, connection: Connection) -> End:
        """The address and channel of a process that dialled this one, once it has proved them. Raises OSError."""
        async with asyncio.timeout(HELLO_SECONDS):
            if await connection.read(len(MAGIC)) != MAGIC:
                raise ConnectionRefusedError
            channel, given, length = HELLO.unpack(await connection.read(HELLO.size))
            end = (await connection.read(length), channel)
        async with asyncio.timeout(TICKET_SECONDS):
            secret = await self._tickets.secret_of(end)
        if not is_proof(given, proof(secret, channel, end[0], self.address)):
            raise ConnectionRefusedError
        return end

    async def _listen(self, end: End, incoming: InboundConnection) -> None:
        if end in self._incoming:
            self._drop(end)  # the peer started anew before we saw its old connections end
        self._incoming[end] = incoming
        if end in self._peers:
            self._peers[end].attach(incoming)
        try:
            await incoming.listen()
        finally:
            if self._incoming.get(end) is incoming:
                self._drop(end)

    def _forget(self, end: End) -> None:
        self._peers.pop(end, None)
        self._tickets.forget(end)

    def _drop(self, end: End) -> None:
        self._incoming.pop(end).connection.shut()
        if end in self._peers:
            self._peers[end].lose(GONE)


def _host_view(buffer: Buffer) -> memoryview:
    if not isinstance(buffer.view, memoryview):
        raise LinkError("sockets do not reach a GPU's memory; choose --transport ucx")
    return buffer.view


def _host_and_port(address: bytes) -> tuple[str, int]:
    host, _, port = address.removeprefix(SCHEME).decode(errors="replace").rpartition(":")
    if not address.startswith(SCHEME) or not port.isdecimal():
        raise LinkError(f"connect: {address[:16]!r}... is not the address of a socket link")
    return host, int(port)
