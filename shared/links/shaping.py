"""Shaping: what leaves this process is limited to a rate, as if by its network card."""

import asyncio

from shared.links.contract import Buffer, Link, Peer


class TokenBucket:
    """`rate` bytes a second; an idle bucket saves up for one message, never for more."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at = 0.0

    def take(self, size_bytes: int, now: float) -> float:
        """When the last byte of a message handed over now has left; messages leave in the order of their calls."""
        seconds = size_bytes / self._rate
        # The credit of one message lets a sender that wakes late make up for it.
        self._free_at = max(self._free_at, now - seconds) + seconds
        return self._free_at


class ShapedPeer:
    """A peer whose sends wait for the bucket."""

    def __init__(self, peer: Peer, bucket: TokenBucket) -> None:
        self._peer = peer
        self._bucket = bucket

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        """As `Peer.send`; the time in the bucket does not count towards `timeout`."""
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(self._bucket.take(buffer.size_bytes, now) - now)
        await self._peer.send(tag, buffer, timeout=timeout)

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        await self._peer.receive(tag, buffer, timeout=timeout)

    async def close(self) -> None:
        await self._peer.close()


class ShapedLink:
    """A link with one bucket for all its peers: they contend for it, as flows do on a real card."""

    def __init__(self, link: Link, rate: float) -> None:
        self._link = link
        self._bucket = TokenBucket(rate)

    @property
    def address(self) -> bytes:
        return self._link.address

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> ShapedPeer:
        peer = await self._link.connect(address, timeout=timeout, channel=channel, secret=secret)
        return ShapedPeer(peer, self._bucket)

    async def close(self) -> None:
        await self._link.close()
