"""A client that sends a request again, but only where the server said that it may."""

import asyncio
from collections import Counter

import aiohttp

from load.client import Client
from load.records import Ask, RequestRecord
from load.tally import Tally
from shared.world import Clock

PATIENCE_SECONDS = 60.0


class PatientClient(Client):
    """`refusals` counts how often each request was refused, by its index."""

    def __init__(self, session: aiohttp.ClientSession, model: str, clock: Clock, tally: Tally) -> None:
        super().__init__(session, model, clock, tally)
        self.refusals: Counter[int] = Counter()

    async def fetch(self, ask: Ask, due: float) -> RequestRecord:
        """Nothing is sent again once a token came, or where the server took the request and failed."""
        while True:
            record = await super().fetch(ask, due)
            if record.retry_after is None:
                return record
            self.refusals[ask.index] += 1
            if self.now() + record.retry_after > due + PATIENCE_SECONDS:
                return record
            await asyncio.sleep(record.retry_after)
