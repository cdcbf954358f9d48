"""What moves bulk bytes between processes: parameters, activations and KV. Commands and events go over the bus.

There are two implementations, `UcxLink` and `SocketLink`, chosen by a setting (`--transport ucx|socket`) and never
silently. A shaped link limits what leaves this process to a rate, which nothing but the link knows.
"""

from collections.abc import Callable, MutableSequence, Sequence
from typing import Protocol, runtime_checkable

import xxhash
from msgspec import Struct

from livescale.shared.links.link_path import LinkPath
from livescale.shared.memory.devices import DeviceBytes

View = memoryview | DeviceBytes
Views = MutableSequence[memoryview] | Sequence[DeviceBytes]  # of a model's blocks, all in the same kind of memory


class Buffer(Struct, frozen=True):
    """Bytes to send from or to receive into, in the host's memory or a GPU's. The link keeps them alive meanwhile.

    Where a link that receives notices pieces of a message, `on_piece` is called with them in their order, in a thread:
    with each before the next one is filled, or with none. What was given to it is not written again.
    """

    view: View
    on_piece: Callable[[memoryview], None] | None = None

    @property
    def size_bytes(self) -> int:
        return self.view.nbytes


class LinkError(Exception):
    """The peer is gone, refused, or too late. What was in flight may have arrived in part."""


class Peer(Protocol):
    """A channel to one process. A message is matched by its tag of 64 bits, for each peer by itself."""

    @property
    def path(self) -> LinkPath:
        """The transport that large messages take to this peer, and why."""

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        """Return once the buffer may be reused. Raises LinkError. A cancelled or timed-out send closes the peer."""

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        """Return once exactly `buffer.size_bytes` bytes are in it. Raises LinkError, like send."""

    async def close(self) -> None: ...


class Link(Protocol):
    """What a process sends and receives bulk bytes with, from and to any number of peers."""

    @property
    def address(self) -> bytes:
        """What a peer connects to: the address that this process tells in `Join`, and that plans hand on."""

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> Peer:
        """Connect to the process at `address`. Raises LinkError.

        There is one peer for each channel, which is kept until either end closes it; what ends one channel leaves the
        others between the same two processes alone. Both ends name the same `channel`, and a process that does not know
        its `secret` neither gets nor delivers a byte on it. What a closed channel leaves may serve the next one to the
        same process, which is then open sooner; nothing else of it shows.
        """

    async def close(self) -> None:
        """Close all peers and free what the link holds. Idempotent."""


@runtime_checkable
class KeepingLink(Protocol):
    """A link that keeps what a channel ran over, so that the next one to the same process waits for no handshake."""

    @property
    def most_kept(self) -> int:
        """How many ways to other processes are kept while they have no channel; 0 where none is."""

    def forget(self, address: bytes) -> None:
        """Close what is kept to the process at `address`, unless it has a channel now."""


def checksum(view: View) -> int:
    """The XXH3 hash of all bytes of `view`, with 64 bits. Call it in a thread: it takes milliseconds."""
    if isinstance(view, memoryview):
        return xxhash.xxh3_64_intdigest(view)
    digest = xxhash.xxh3_64()
    for piece in view.pieces():
        digest.update(piece)
    return digest.intdigest()
