"""A client of several gateways. It repeats a request where the server said that it may, or where the connection
broke."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from itertools import count

import aiohttp
import msgspec

from livescale.load.client import LoadClient
from livescale.load.records import Ask, RequestRecord
from livescale.load.stats import Tally
from livescale.shared.runtime.clock import Clock

# Clients do not give up sooner on a machine that is slow to start processes again.
PATIENCE_SECONDS = 120.0
BROKEN_SECONDS = 0.2


class CutStream(msgspec.Struct, frozen=True):
    """A stream that ended with its connection, and which gateway that was to."""

    gateway: str
    record: RequestRecord


class PatientClient(LoadClient):
    """A client that goes from gateway to gateway.

    `refusals` counts how often each request was refused, by its index. `cuts` are the streams whose connection broke
    and whose requests were sent again. A request has one due time, however often it is sent.
    """

    def __init__(self, sessions: Mapping[str, aiohttp.ClientSession], model: str, clock: Clock, tally: Tally) -> None:
        super().__init__(next(iter(sessions.values())), model, clock, tally)
        self._sessions = sessions
        self._gateways = list(sessions)
        self.refusals: Counter[int] = Counter()
        self.cuts: list[CutStream] = []

    async def fetch(self, ask: Ask, due: float) -> RequestRecord:
        """Nothing is sent again where the server took the request and failed."""
        self._tally.on_sent()
        record = await self._persist(ask, due)
        self._tally.on_end(record)
        return record

    async def _persist(self, ask: Ask, due: float) -> RequestRecord:
        last = due + PATIENCE_SECONDS
        for turn in count(ask.index):
            gateway = self._gateways[turn % len(self._gateways)]
            record = await self.attempt(self._sessions[gateway], ask, due)
            pause = BROKEN_SECONDS if record.broken else record.retry_after
            if pause is None or self.now() + pause > last:
                break
            if record.broken:
                self.cuts.append(CutStream(gateway, record))
            else:
                self.refusals[ask.index] += 1
            await asyncio.sleep(pause)
        return record
