"""What goes over a link: how fast of late, and which way it comes from each peer.

Only bytes that are moved through a metered link are counted.
"""

from collections.abc import Callable
from functools import cache
from math import exp

import structlog
from msgspec import Struct

from livescale.shared.links.contract import Buffer, Link, Peer
from livescale.shared.links.link_path import MAPPED, SOCKETS, LinkPath
from livescale.shared.process.telemetry import Telemetry

FADE_SECONDS = 2.0  # after which what was moved counts for a third
LEAST = 1.0  # bytes a second, below which it is over

MOST_PEERS = 16  # a report must stay small

# Shown from the start, so that a rate has a zero to begin at.
COMMON_PATHS = (MAPPED.name, SOCKETS.name, "cma", "posix", "tcp", "cuda_ipc")

log = structlog.get_logger()


class PeerRates(Struct, frozen=True):
    """What moves to and from one peer, in bytes a second."""

    sent: float = 0.0
    received: float = 0.0


class Meter:
    """Measures rates by peer and direction: bytes weigh less the longer ago they moved.

    Steady traffic shows as its rate.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rates: dict[bytes, PeerRates] = {}
        self._since = now()

    def sent(self, peer: bytes, size_bytes: int) -> None:
        rates = self._fade().get(peer, PeerRates())
        self._rates[peer] = PeerRates(rates.sent + size_bytes / FADE_SECONDS, rates.received)

    def received(self, peer: bytes, size_bytes: int) -> None:
        rates = self._fade().get(peer, PeerRates())
        self._rates[peer] = PeerRates(rates.sent, rates.received + size_bytes / FADE_SECONDS)

    @property
    def rates(self) -> dict[bytes, PeerRates]:
        """The rates of every peer that something was moved to or from of late, by the address of its link."""
        return dict(self._fade()) if self._rates else {}

    def _fade(self) -> dict[bytes, PeerRates]:
        """The rates as they are now."""
        now = self._now()
        left = exp((self._since - now) / FADE_SECONDS)
        faded = {peer: PeerRates(one.sent * left, one.received * left) for peer, one in self._rates.items()}
        self._rates = {peer: one for peer, one in faded.items() if one.sent + one.received > LEAST}
        self._since = now
        return self._rates


class MeteredPeer:
    """A peer whose messages are counted by `meter` once they have been moved whole."""

    def __init__(self, peer: Peer, address: bytes, meter: Meter) -> None:
        self._peer = peer
        self._address = address
        self._meter = meter

    @property
    def path(self) -> LinkPath:
        return self._peer.path

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        await self._peer.send(tag, buffer, timeout=timeout)
        self._meter.sent(self._address, buffer.size_bytes)

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        await self._peer.receive(tag, buffer, timeout=timeout)
        self._meter.received(self._address, buffer.size_bytes)

    async def close(self) -> None:
        await self._peer.close()


class MeteredLink:
    """A link whose traffic is counted. Others may use the same link directly and are not counted."""

    def __init__(self, link: Link, meter: Meter) -> None:
        self._link = link
        self._meter = meter

    @property
    def address(self) -> bytes:
        return self._link.address

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> MeteredPeer:
        peer = await self._link.connect(address, timeout=timeout, channel=channel, secret=secret)
        return MeteredPeer(peer, address, self._meter)

    async def close(self) -> None:
        await self._link.close()


class PathBytes:
    """Counts the bytes of parameters that arrive in this process by the path they took."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._bytes = telemetry.counter(
            "livescale_parameter_bytes_total",
            "Bytes of parameters that arrived, by path; mapped ones were not moved",
            ["path"],
            [(name,) for name in COMMON_PATHS],
        )
        self._of_path = cache(self._bytes.labels)  # few names, and thousands of chunks

    def moved(self, path: LinkPath, size_bytes: int) -> None:
        self._of_path(path.name).inc(size_bytes)


class Paths:
    """The names of the paths to the latest peers. A path that is new is logged with its reason."""

    def __init__(self) -> None:
        self.by_peer: dict[str, str] = {}

    def note(self, peer: str, path: LinkPath) -> None:
        if self.by_peer.get(peer) != path.name:
            log.info("path_chosen", peer=peer, path=path.name, reason=path.reason)
        self.by_peer.pop(peer, None)
        self.by_peer[peer] = path.name
        if len(self.by_peer) > MOST_PEERS:
            del self.by_peer[next(iter(self.by_peer))]
