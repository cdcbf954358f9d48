"""Modelled links with rates: what all processes send over a topology shares its links max-min fairly at every moment.

A sender waits until its bytes would have passed all links of the path; then the link beneath delivers them. Links go on
while a process is stopped, as a network card does with what it has been given.
"""

import asyncio
from contextvars import Context
from functools import partial
from weakref import WeakValueDictionary

from livescale.shared.links.contract import Buffer, Link, Peer
from livescale.shared.links.link_path import LinkPath
from livescale.shared.links.shaping import PeerRoutes
from livescale.shared.simulation.fair_flows import FairFlow, FairFlows, FairMessage
from livescale.shared.simulation.virtual_time import machine_time


class FairShares:
    """Carries what flows send, in the machine's time: one timer for each flow that has something to send."""

    def __init__(self, flows: FairFlows) -> None:
        self.flows = flows
        self._timers: dict[FairFlow, asyncio.TimerHandle] = {}
        self._settles = False

    async def carry(self, flow: FairFlow, size_bytes: int) -> None:
        """Wait until so many bytes have passed, after those that were given before."""
        if not flow.resources:
            return
        passing = asyncio.get_running_loop().create_future()
        message = FairMessage(size_bytes, partial(_end, passing))
        self.flows.add(flow, message, machine_time())
        self._settle_soon()
        try:
            await passing
        except asyncio.CancelledError:
            self.flows.drop(flow, message, machine_time())
            self._arm(flow)  # the next message is the first now
            self._settle_soon()
            raise

    def _settle_soon(self) -> None:
        """Deal rates once, after all that happens at this moment."""
        if not self._settles:
            self._settles = True
            asyncio.get_running_loop().call_soon(self._settle, context=Context())

    def _settle(self) -> None:
        self._settles = False
        for flow in self.flows.settle(machine_time()):
            self._arm(flow)

    def _arm(self, flow: FairFlow) -> None:
        timer = self._timers.pop(flow, None)
        if timer is not None:
            timer.cancel()
        if flow.messages and flow.rate:
            loop = asyncio.get_running_loop()
            self._timers[flow] = loop.call_at(flow.ends, self._first_is_through, flow, context=Context())

    def _first_is_through(self, flow: FairFlow) -> None:
        del self._timers[flow]
        self.flows.end(flow).through()
        self._arm(flow)
        if not flow.messages:
            self._settle_soon()


def _end(passing: "asyncio.Future[None]") -> None:
    if not passing.done():
        passing.set_result(None)


class FairPeer:
    """A peer whose sends wait until their bytes would have arrived."""

    def __init__(self, peer: Peer, flow: FairFlow, shares: FairShares) -> None:
        self._peer = peer
        self._flow = flow
        self._shares = shares

    @property
    def path(self) -> LinkPath:
        return self._peer.path

    def is_over(self, peer: Peer) -> bool:
        return self._peer is peer

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        """Send as `Peer.send` does. The time that links take does not count towards `timeout`."""
        await self._shares.carry(self._flow, buffer.size_bytes)
        await self._peer.send(tag, buffer, timeout=timeout)

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        await self._peer.receive(tag, buffer, timeout=timeout)

    async def close(self) -> None:
        await self._peer.close()


class FairLink:
    """The link of one process, whose peers share the topology's links with those of all others."""

    def __init__(self, link: Link, routes: PeerRoutes, shares: FairShares) -> None:
        self._link = link
        self._routes = routes
        self._shares = shares
        self._peers: WeakValueDictionary[tuple[bytes, int], FairPeer] = WeakValueDictionary()

    @property
    def address(self) -> bytes:
        return self._routes.address(self._link.address)

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> FairPeer:
        beneath, path = self._routes.to(address)
        peer = await self._link.connect(beneath, timeout=timeout, channel=channel, secret=secret)
        known = self._peers.get((address, channel))
        if known is None or not known.is_over(peer):
            known = FairPeer(peer, self._shares.flows.open(path), self._shares)
            self._peers[address, channel] = known
        return known

    async def close(self) -> None:
        await self._link.close()
