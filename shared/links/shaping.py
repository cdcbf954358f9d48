"""Shaping: what processes send is limited to what their links would carry, in a cluster or at a single rate.

The sender waits for all links of the path, the receiver's included; when it may send, the bytes have arrived.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from livescale.shared.links.calendars import LocalCalendar, SharedCalendar
from livescale.shared.links.contract import Buffer, KeepingLink, Link, LinkError, Peer
from livescale.shared.links.flows import PIECES_AHEAD, ShapedFlow, piece_bytes_for
from livescale.shared.links.link_path import LinkPath
from livescale.shared.topology.paths import Resource
from livescale.shared.topology.topology import Topology

SCHEME = b"at:"  # then the place, a blank, and the address of the link beneath


class PeerRoutes(Protocol):
    """Which links lie between this process and a peer."""

    @property
    def network_rate(self) -> float:
        """The rate of the fastest network card in bytes a second."""

    def address(self, beneath: bytes) -> bytes:
        """What peers connect to, given the address of the link beneath."""

    def to(self, address: bytes) -> tuple[bytes, Sequence[Resource]]:
        """The peer's address beneath, and the links on the way to it. Raises LinkError."""


@dataclass(frozen=True)
class SingleRate:
    """Routes on which all bytes that leave this process share one link."""

    network_rate: float

    def address(self, beneath: bytes) -> bytes:
        return beneath

    def to(self, address: bytes) -> tuple[bytes, Sequence[Resource]]:
        return address, (Resource("nic_out", "", self.network_rate),)


class Cluster:
    """Routes in a topology: this process is at a place of it, which its address tells its peers."""

    def __init__(self, topology: Topology, place: str) -> None:
        """Raises LinkError where there is no such place."""
        if place not in topology.places:
            raise LinkError(f"place: {place!r} is no host or GPU of topology {topology.name}")
        self.network_rate = topology.fastest_nic
        self._topology = topology
        self._place = place

    def address(self, beneath: bytes) -> bytes:
        return SCHEME + self._place.encode() + b" " + beneath

    def to(self, address: bytes) -> tuple[bytes, Sequence[Resource]]:
        name, _, beneath = address.removeprefix(SCHEME).partition(b" ")
        place = name.decode(errors="replace")
        if not address.startswith(SCHEME) or place not in self._topology.places:
            raise LinkError(f"connect: {address[:16]!r}... is at no place of topology {self._topology.name}")
        return beneath, self._topology.path(self._place, place).resources


@dataclass
class Passing:
    """A message that waits until its bytes would have passed all shaped links."""

    size_bytes: int  # that are not booked yet
    handed_over: float
    left: asyncio.Future[None]


B = TypeVar("B", bound=Peer)


class PacedPeer(ABC, Generic[B]):
    """A peer over another one, whose sends wait until their bytes would have arrived. The time that links take does not
    count towards the `timeout` of a send."""

    def __init__(self, peer: B) -> None:
        self._peer = peer

    @property
    def path(self) -> LinkPath:
        return self._peer.path

    def is_over(self, peer: Peer) -> bool:
        return self._peer is peer

    @abstractmethod
    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None: ...

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        await self._peer.receive(tag, buffer, timeout=timeout)

    async def close(self) -> None:
        await self._peer.close()


P = TypeVar("P", bound=PacedPeer[Any])


class PacedLink(ABC, Generic[P]):
    """The link of one process over another one, with paced peers over the links on the way to them."""

    def __init__(self, link: Link, routes: PeerRoutes) -> None:
        self._link = link
        self._routes = routes
        self._peers: WeakValueDictionary[tuple[bytes, int], P] = WeakValueDictionary()

    @property
    def address(self) -> bytes:
        return self._routes.address(self._link.address)

    @abstractmethod
    def paced(self, peer: Peer, path: Sequence[Resource]) -> P:
        """A peer over this one, whose bytes pass these links."""

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> P:
        beneath, path = self._routes.to(address)
        peer = await self._link.connect(beneath, timeout=timeout, channel=channel, secret=secret)
        known = self._peers.get((address, channel))
        if known is None or not known.is_over(peer):
            known = self.paced(peer, path)
            self._peers[address, channel] = known
        return known

    async def close(self) -> None:
        await self._link.close()


class ShapedPeer(PacedPeer[Peer]):
    """A peer whose messages are booked in a calendar, piece by piece."""

    def __init__(self, peer: Peer, flow: ShapedFlow) -> None:
        super().__init__(peer)
        self._flow = flow
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Passing] = deque()  # messages leave in the order of their calls
        self._ahead = 0

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        await self._pass_links(buffer.size_bytes)
        await self._peer.send(tag, buffer, timeout=timeout)

    async def _pass_links(self, size_bytes: int) -> None:
        """Wait until so many bytes would have passed all links of the path."""
        passing = Passing(size_bytes, self._loop.time(), self._loop.create_future())
        self._waiting.append(passing)
        self._book()
        await passing.left

    def _book(self) -> None:
        """Book pieces while fewer than two are ahead.

        A piece that is booked is used, even if its sender was cancelled.
        """
        while self._waiting and self._ahead < PIECES_AHEAD:
            first = self._waiting[0]
            if first.left.cancelled():
                self._waiting.popleft()
                continue
            piece, departs = self._flow.book(first.size_bytes, first.handed_over)
            first.size_bytes -= piece
            self._ahead += 1
            if not first.size_bytes:
                self._waiting.popleft()
            self._loop.call_at(departs, self._leave, None if first.size_bytes else first.left)

    def _leave(self, left: asyncio.Future[None] | None) -> None:
        """Note that a piece has left; `left` is given with the last piece of a message."""
        self._ahead -= 1
        if left is not None and not left.done():
            left.set_result(None)
        self._book()


class ShapedLink(PacedLink[ShapedPeer]):
    """A link whose peers contend with each other, and with those of other processes where the calendar is shared."""

    def __init__(self, link: Link, routes: PeerRoutes, calendar: LocalCalendar | SharedCalendar) -> None:
        super().__init__(link, routes)
        self._calendar = calendar
        self._piece_bytes = piece_bytes_for(routes.network_rate)

    def paced(self, peer: Peer, path: Sequence[Resource]) -> ShapedPeer:
        return ShapedPeer(peer, ShapedFlow(path, self._calendar, self._piece_bytes))

    @property
    def most_kept(self) -> int:
        return self._link.most_kept if isinstance(self._link, KeepingLink) else 0

    def forget(self, address: bytes) -> None:
        if isinstance(self._link, KeepingLink):
            self._link.forget(self._routes.to(address)[0])

    async def close(self) -> None:
        await super().close()
        self._calendar.close()
