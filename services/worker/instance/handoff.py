"""What moves when a request changes hands: under which tags, within which time, and how it is checked."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from livescale.shared.links.contract import Buffer, Link, LinkError, Peer, View, checksum
from livescale.shared.messages.transfers import Node
from livescale.shared.transfer.chunks import TICKETS, first_ticket

CONNECT_SECONDS = 5.0
PIECE_BYTES = 4 << 20
PIECE_SECONDS = 10.0  # within which a piece moves, or the hand-off is given up
# Channels of hand-offs are numbered above those of flows, which are tickets.
FIRST_CHANNEL = 1 << 24
ACTIVATION, KV = 0, 1  # what a piece belongs to, in its tag
TAG_BITS = 32
DIGEST_NUMBER = (1 << TAG_BITS) - 1  # in place of a piece's
DIGEST_BYTES = 8
SMALL_BYTES = 1 << 20


class HandOffTickets:
    """The tickets by which a worker names its hand-offs, and which begin again. Where they go on after those of an
    earlier process they are counted from the time `wall` on."""

    def __init__(self, wall: float = 0.0) -> None:
        self._next = first_ticket(wall) % TICKETS

    def take(self, count: int = 1) -> int:
        """Reserve so many tickets in a row, and return the first."""
        first = self._next if self._next + count <= TICKETS else 0
        self._next = first + count
        return first


@dataclass(frozen=True)
class Channel:
    """A way to the other end of one hand-off, and the secret that only the two ends know.

    The source's ticket names the hand-off.
    """

    link: Link
    other: Node
    ticket: int
    secret: bytes

    async def connect(self) -> Peer:
        """Open the channel and return its end here. Raises LinkError."""
        return await self.link.connect(
            self.other.address, timeout=CONNECT_SECONDS, channel=FIRST_CHANNEL + self.ticket, secret=self.secret
        )

    @asynccontextmanager
    async def giving(self) -> AsyncIterator[Peer]:
        """Open the channel to send. The other end closes it, as it knows when it has everything. Raises LinkError.

        Where something fails here it is closed at once, from which the other end learns that nothing more will come.
        """
        async with AsyncExitStack() as undo:
            peer = await self.connect()
            undo.push_async_callback(peer.close)
            yield peer
            undo.pop_all()


async def send(peer: Peer, part: int, data: View) -> None:
    """Send all of `data`, then its checksum. Raises LinkError."""
    for tag, buffer in _pieces(part, data):
        await peer.send(tag, buffer, timeout=PIECE_SECONDS)
    await peer.send(_digest_tag(part), Buffer(await _digest(data)), timeout=PIECE_SECONDS)


async def receive(peer: Peer, part: int, size_bytes: int) -> memoryview:
    """Receive so many bytes. Raises LinkError, also where something else arrived than was sent."""
    data = memoryview(bytearray(size_bytes))
    await receive_into(peer, part, data)
    return data


async def receive_into(peer: Peer, part: int, data: View) -> None:
    """Receive as many bytes as `data` has, into it. Raises LinkError as `receive` does."""
    sent = memoryview(bytearray(DIGEST_BYTES))
    for tag, buffer in _pieces(part, data):
        await peer.receive(tag, buffer, timeout=PIECE_SECONDS)
    await peer.receive(_digest_tag(part), Buffer(sent), timeout=PIECE_SECONDS)
    if sent != await _digest(data):
        raise LinkError(f"{data.nbytes} bytes arrived damaged, their checksum is another")


def _pieces(part: int, data: View) -> Iterator[tuple[int, Buffer]]:
    for number, start in enumerate(range(0, data.nbytes, PIECE_BYTES)):
        yield part << TAG_BITS | number, Buffer(data[start : start + PIECE_BYTES])


def _digest_tag(part: int) -> int:
    return part << TAG_BITS | DIGEST_NUMBER


async def _digest(data: View) -> memoryview:
    # A thread takes longer to begin, beside a step that is computed, than as much takes to be read.
    digest = checksum(data) if data.nbytes <= SMALL_BYTES else await asyncio.to_thread(checksum, data)
    return memoryview(bytearray(digest.to_bytes(DIGEST_BYTES, "big")))
