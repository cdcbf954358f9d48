"""A request on its way from a target to a source: it stays the target's until the source says that it took it."""

import asyncio

import structlog

from livescale.services.worker.live.handoff import ACTIVATION, KV, Channel, send
from livescale.services.worker.scheduling.batch import Entry
from livescale.services.worker.scheduling.sequence import Sequence
from livescale.shared.links.contract import LinkError, Peer
from livescale.shared.messages.transfers import Node

# From the activation's arrival; a source that says so later hears that it came too late.
TOOK_SECONDS = 5.0

log = structlog.get_logger()


class NotTaken(Exception):
    """The source did not take the request, and why."""


class Giving:
    """One hand-off. `kv` is the KV of the layers that `entry` has behind it, exported; both None where there are none.

    `ranks`: those that the source leads. `settled` says how it ended: True once the request is the source's.
    """

    def __init__(
        self,
        sequence: Sequence,
        entry: Entry | None,
        kv: asyncio.Future[memoryview] | None,
        channel: Channel,
        ranks: list[Node],
    ) -> None:
        self.sequence = sequence
        self.channel = channel
        self.settled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.entry = entry
        self.ranks = ranks
        self._kv = kv

    @property
    def source(self) -> str:
        return self.channel.other.id

    def settle(self, taken: bool) -> None:
        """Said twice, it stays."""
        if not self.settled.done():
            self.settled.set_result(taken)

    async def run(self) -> None:
        """Until the source has everything. What fails before it took the request gives it back (`settled`)."""
        try:
            if self.entry is None or self._kv is None:
                await self._answered()
                return
            async with self.channel.giving() as peer:
                await self._send(peer, self.entry, self._kv)
        except (LinkError, NotTaken, RuntimeError) as error:
            log.warning("hand_off_failed", to=self.source, taken=self.settled.done(), error=str(error))
        finally:
            self.settle(False)

    async def _send(self, peer: Peer, entry: Entry, kv: asyncio.Future[memoryview]) -> None:
        await send(peer, ACTIVATION, entry.activation)
        await self._answered()
        await send(peer, KV, await kv)

    async def _answered(self) -> None:
        await asyncio.wait((self.settled,), timeout=TOOK_SECONDS)
        if not (self.settled.done() and self.settled.result()):
            raise NotTaken("it declined, or said nothing in time")
