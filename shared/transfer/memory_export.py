"""Memory export: a process hands memory over to other processes of its machine, through a unix socket.

The socket's name follows from the address of the process's link. Only the kernel of this machine knows it (to be exact:
the network namespace), so a process elsewhere finds no socket and receives over the link. Both ends of a flow prove
that they know its plan's secret; a process that does not know it gets nothing.
"""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from hashlib import blake2b

import structlog

from livescale.shared.links.connection import accept_all
from livescale.shared.links.tickets import PROOF_BYTES, is_proof, proof
from livescale.shared.memory.arena import Segment, SharedBlocks, Spans
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.runtime.waiting import Changes
from livescale.shared.transfer.flow_end import FlowEnd

log = structlog.get_logger()

ASK = struct.Struct(f">Q{PROOF_BYTES}s")  # ticket and proof, followed by the address of the process that asks
SPAN = struct.Struct(">QQQ")  # block, offset, size
MOST_ASKED, MOST_ANSWERED = 4096, 1 << 20  # bytes
MOST_VISITS = 256  # connections at once: any process of this machine can connect; further receivers use the link
ASK_SECONDS = 5.0  # then the link is used

Offer = Callable[[], Awaitable[Segment | None]]
OpenMemoryExport = Callable[[bytes], "MemoryExport | None"]  # at the address of a link


class MemoryExport:
    """Hands memory over to processes of this machine, at the address of this process's link.

    Make it inside a running event loop.
    """

    def __init__(self, address: bytes) -> None:
        """Listen on the socket that belongs to `address`. Raises OSError."""
        self._address = address
        self._listener = _socket()
        try:
            self._listener.bind(_name(address))
            self._listener.listen(MOST_VISITS)
        except OSError:
            self._listener.close()
            raise
        self._offers: dict[tuple[bytes, int], tuple[bytes, Offer]] = {}
        self._changed = Changes()
        self._visits: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())

    def offer(self, end: FlowEnd, offer: Offer) -> None:
        """Let the receiver of this flow have the memory that `offer` returns."""
        self._offers[end.other.address, end.ticket] = end.secret, offer
        self._changed.tell()

    def withdraw(self, end: FlowEnd) -> None:
        self._offers.pop((end.other.address, end.ticket), None)

    async def ask(self, end: FlowEnd) -> Segment | None:
        """Ask the sender of this flow for its memory. None where it is on another machine, or has nothing to share."""
        with _socket() as sock:
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    sock.connect(_name(end.other.address))
                    shown = _proof(b"ask", end.secret, end.ticket, self._address, end.other.address)
                    sock.send(ASK.pack(end.ticket, shown) + self._address)
                    await _readable(sock)
                    return self._take(end, sock)
            except ValueError as error:
                log.warning("memory_not_taken", peer=end.other.id, error=str(error))
            except OSError as error:  # TimeoutError included
                log.debug("no_memory_shared", peer=end.other.id, error=str(error) or "no answer in time")
        return None

    async def close(self) -> None:
        for task in (self._accepting, *self._visits):
            task.cancel()
        await asyncio.wait((self._accepting, *self._visits))
        self._listener.close()

    def _take(self, end: FlowEnd, sock: socket.socket) -> Segment | None:
        answer, descriptors, _, _ = socket.recv_fds(sock, MOST_ANSWERED, 1, socket.MSG_CMSG_CLOEXEC)
        if not descriptors:
            return None
        segment = Segment(descriptors[0], _spans(answer[PROOF_BYTES:]))
        expected = _proof(b"answer", end.secret, end.ticket, end.other.address, self._address)
        if not is_proof(answer[:PROOF_BYTES], expected):
            raise ValueError("the sender of the memory does not know the plan's secret")
        return segment

    async def _accept(self) -> None:
        async for sock in accept_all(self._listener):
            if len(self._visits) == MOST_VISITS:
                sock.close()
                continue
            visit = asyncio.create_task(self._answer(sock))
            self._visits.add(visit)
            visit.add_done_callback(self._visits.discard)

    async def _answer(self, sock: socket.socket) -> None:
        with (
            sock,
            suppress(OSError, ValueError, struct.error),
        ):  # a process that is gone, or no receiver of ours, gets nothing
            async with asyncio.timeout(ASK_SECONDS):
                asked = await asyncio.get_running_loop().sock_recv(sock, MOST_ASKED)
                ticket, shown = ASK.unpack(asked[: ASK.size])
                asker = asked[ASK.size :]
                secret, offer = await self._offered(asker, ticket)
                if not is_proof(shown, _proof(b"ask", secret, ticket, asker, self._address)):
                    return
                segment = await offer()
            if segment is not None:
                answer = _proof(b"answer", secret, ticket, self._address, asker) + _packed(segment.spans)
                socket.send_fds(sock, [answer], [segment.descriptor])

    async def _offered(self, asker: bytes, ticket: int) -> tuple[bytes, Offer]:
        """Wait until this process is told of the flow, which its receiver may be told first."""
        while (asker, ticket) not in self._offers:
            await self._changed.wait()
        return self._offers[asker, ticket]


def shares_memory(settings: LinkSettings) -> bool:
    """Whether memory may be shared. Where links are shaped it is not, as sharing would bypass the shaping."""
    return settings.share_memory == "auto" and not settings.link_rate and not settings.shaping_file


def open_memory_export(settings: LinkSettings, address: bytes) -> MemoryExport | None:
    """Open the export at the address of a link. None where memory is not to be shared, or cannot be: what would have
    been mapped is then sent over the link."""
    if not shares_memory(settings):
        return None
    try:
        return MemoryExport(address)
    except OSError as error:
        log.warning("memory_not_shared", error=str(error))
        return None


def offer_of(memory: Sequence[memoryview]) -> Offer | None:
    """An offer of all of `memory`, where it may be shared."""
    if not isinstance(memory, SharedBlocks):
        return None
    segment = memory.segment

    async def offer() -> Segment:
        return segment

    return offer


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def _name(address: bytes) -> bytes:
    """The name of an abstract socket: the kernel frees it when the process ends, however it ends."""
    return b"\0livescale-" + blake2b(address, digest_size=16).hexdigest().encode()


def _proof(what: bytes, secret: bytes, ticket: int, speaker: bytes, hearer: bytes) -> bytes:
    """A proof that is of no use on the link, where the same two processes prove the same secret."""
    return proof(what + secret, ticket, speaker, hearer)


def _packed(spans: Spans) -> bytes:
    return b"".join(SPAN.pack(block, offset, size) for block, (offset, size) in spans.items())


def _spans(packed: bytes) -> Spans:
    whole = len(packed) // SPAN.size * SPAN.size
    return {block: (offset, size) for block, offset, size in SPAN.iter_unpack(packed[:whole])}


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
