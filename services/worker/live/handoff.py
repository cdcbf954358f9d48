"""What moves when a request changes hands: under which tags, within which time."""

from collections.abc import Iterator
from dataclasses import dataclass

from shared.links.contract import Buffer, Link, Peer
from shared.messages.transfers import Node

CONNECT_SECONDS = 5.0
PIECE_BYTES = 4 << 20
PIECE_SECONDS = 10.0  # within which a piece moves, or the hand-off is given up
# Channels of hand-offs are numbered above those of flows, which are tickets.
FIRST_CHANNEL = 1 << 24
ACTIVATION, KV = 0, 1  # what a piece belongs to, in its tag
TAG_BITS = 32


@dataclass(frozen=True)
class Channel:
    """Where the other end is, and what only the two ends know. The source's ticket names the hand-off."""

    link: Link
    other: Node
    ticket: int
    secret: bytes

    async def connect(self) -> Peer:
        """Raises LinkError."""
        return await self.link.connect(
            self.other.address, timeout=CONNECT_SECONDS, channel=FIRST_CHANNEL + self.ticket, secret=self.secret
        )


async def send(peer: Peer, part: int, data: memoryview) -> None:
    """Raises LinkError."""
    for tag, buffer in _pieces(part, data):
        await peer.send(tag, buffer, timeout=PIECE_SECONDS)


async def receive(peer: Peer, part: int, size_bytes: int) -> memoryview:
    """Raises LinkError."""
    data = memoryview(bytearray(size_bytes))
    for tag, buffer in _pieces(part, data):
        await peer.receive(tag, buffer, timeout=PIECE_SECONDS)
    return data


def _pieces(part: int, data: memoryview) -> Iterator[tuple[int, Buffer]]:
    for number, start in enumerate(range(0, data.nbytes, PIECE_BYTES)):
        yield part << TAG_BITS | number, Buffer(data[start : start + PIECE_BYTES])
