"""What moves bulk bytes between processes: parameters now, activations and KV later. Control never goes here.

Two implementations: `UcxLink` and `SocketLink`, chosen by setting (`--transport ucx|socket`), never silently.
A shaped link limits what leaves this process to a rate; nothing but the link knows.
"""

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from typing import Protocol

from livescale.shared.links.link_path import LinkPath
from livescale.shared.memory.devices import DeviceBytes

View = memoryview | DeviceBytes
Views = MutableSequence[memoryview] | Sequence[DeviceBytes]  # of a model's blocks, all in the same kind of memory


@dataclass(frozen=True)
class Buffer:
    """Bytes to send from or to receive into, in the host's memory or a GPU's. Kept alive by whoever moves it."""

    view: View

    @property
    def size_bytes(self) -> int:
        return self.view.nbytes


class LinkError(Exception):
    """The peer is gone, refused, or too late; what was in flight is garbage."""


class Peer(Protocol):
    """A channel to one process. Tags are 64 bits; a message is matched by tag, per peer."""

    @property
    def path(self) -> LinkPath:
        """Which way large messages take."""

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        """Return once the buffer may be reused. Raises LinkError. A cancelled or timed-out send closes the peer."""

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        """Return once exactly `buffer.size_bytes` bytes are in it. Raises LinkError, like send."""

    async def close(self) -> None: ...


class Link(Protocol):
    """A process's door for bulk bytes."""

    @property
    def address(self) -> bytes:
        """What a peer connects to; goes into Join and into plans."""

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> Peer:
        """The peer at `address`, connected once a channel and kept until either end closes it. Raises LinkError.

        What ends one channel leaves the others between the same two processes alone; both ends name the same one, and
        whoever does not know its `secret` neither gets nor delivers a byte on it.
        """

    async def close(self) -> None:
        """Free everything. Idempotent."""
