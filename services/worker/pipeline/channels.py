"""Channels of the link between two workers of a pipeline, each known to these alone."""

from contextlib import suppress
from zlib import crc32

from livescale.services.worker.live.handoff import CONNECT_SECONDS
from livescale.shared.links.contract import Link, LinkError, Peer
from livescale.shared.messages.pipelines import Pipeline

# They are numbered above those of hand-offs.
FIRST_CHANNEL = 1 << 25
CHANNELS = 1 << 24


async def reach(link: Link, command: Pipeline, address: bytes, purpose: str) -> Peer:
    """The other end, which names the same `purpose`. Raises LinkError."""
    number = FIRST_CHANNEL + crc32(f"{command.id}/{purpose}".encode()) % CHANNELS
    return await link.connect(address, timeout=CONNECT_SECONDS, channel=number, secret=command.secret)


async def close(peer: Peer) -> None:
    """Also one that is broken."""
    with suppress(LinkError):
        await peer.close()
