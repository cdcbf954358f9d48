"""Modelled links with rates: what all processes send over a topology shares its links max-min fairly at every moment.

A sender waits until its bytes would have passed all links of the path; then the link beneath delivers them. Links go on
while a process is stopped, as a network card does with what it has been given.
"""

import asyncio
from collections.abc import Sequence
from contextvars import Context

from livescale.shared.links.contract import Buffer, Peer
from livescale.shared.links.shaping import PacedLink, PacedPeer, PeerRoutes
from livescale.shared.simulation.fair_flows import FairFlow, FairFlows, FairMessage
from livescale.shared.simulation.modelled_links import ModelledLink, ModelledPeer, Sending
from livescale.shared.simulation.virtual_clock import machine_time
from livescale.shared.simulation.virtual_time import running_loop
from livescale.shared.topology.paths import Resource


class FairShares:
    """Carries what flows send, in the machine's time: one timer for each flow that has something to send."""

    def __init__(self, flows: FairFlows) -> None:
        self.flows = flows
        self._timers: dict[FairFlow, asyncio.TimerHandle] = {}
        self._settles = False
        self._nowhere = Context()  # in which timers run: that of no process

    async def carry(self, flow: FairFlow, size_bytes: int, sending: Sending) -> None:
        """Let so many bytes pass, after those that were given before, and wait until they have arrived."""
        now = running_loop().now
        message = FairMessage(size_bytes, sending.has_passed)
        self.flows.add(flow, message, now)
        self._settle_soon()
        try:
            await sending.arrival()
        except asyncio.CancelledError:
            self.flows.drop(flow, message, running_loop().now)
            self._arm(flow)  # the next message is the first now
            self._settle_soon()
            raise

    def _settle_soon(self) -> None:
        """Deal rates once, after all that happens at this moment, if anything in it changes them."""
        if not (self._settles or self.flows.is_settled):
            self._settles = True
            asyncio.get_running_loop().call_soon(self._settle, context=self._nowhere)

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
            self._timers[flow] = loop.call_at(flow.ends, self._first_is_through, flow, context=self._nowhere)

    def _first_is_through(self, flow: FairFlow) -> None:
        del self._timers[flow]
        self.flows.end(flow).through()
        self._arm(flow)
        self._settle_soon()


class FairPeer(PacedPeer[ModelledPeer]):
    """A peer whose messages share links with all others."""

    def __init__(self, peer: ModelledPeer, flow: FairFlow, shares: FairShares) -> None:
        super().__init__(peer)
        self._flow = flow
        self._shares = shares

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        if self._flow.resources:
            await self._shares.carry(self._flow, buffer.size_bytes, Sending(self._peer, tag, buffer.view))
        else:
            await self._peer.send(tag, buffer, timeout=timeout)


class FairLink(PacedLink[FairPeer]):
    """The link of one process, whose peers share the topology's links with those of all others."""

    def __init__(self, link: ModelledLink, routes: PeerRoutes, shares: FairShares) -> None:
        super().__init__(link, routes)
        self._shares = shares

    def paced(self, peer: Peer, path: Sequence[Resource]) -> FairPeer:
        assert isinstance(peer, ModelledPeer), "the link beneath is a modelled one"
        return FairPeer(peer, self._shares.flows.open(path), self._shares)
