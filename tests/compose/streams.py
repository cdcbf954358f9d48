"""A load on a stack that goes on until it is told to stop, and a verdict on every stream."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from livescale.load.chaos.client import CutStream, PatientClient
from livescale.load.client import open_session
from livescale.load.engine_alone import undisturbed
from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.stats import Tally
from livescale.shared.runtime.clock import SystemClock
from tests.compose.stack import KEY, ComposeStack

MODEL = "m"
SESSION_SECONDS = 300.0
PAUSE_SECONDS = 0.3
UNDER_WAY = 24  # at most: on a busy machine streams would pile up, and none of them would end in time
DRAIN_SECONDS = 180.0
# Long enough to be under way when somebody dies; every other one is sampled.
ASKS = [Ask(index, 0.0, [index + 1] * (7 + 20 * index), 240, 0.8 * (index % 2), index) for index in range(12)]


class Streams:
    """What came of a load. `lost` and `wrong` are the faults; `cuts` are accepted streams whose connection broke."""

    def __init__(self, expected: dict[int, list[int]]) -> None:
        self._expected = expected
        self.records: list[RequestRecord] = []
        self.cuts: Sequence[CutStream] = ()

    @property
    def lost(self) -> list[str]:
        return [fault for record in self.records if (fault := find_fault(record)) is not None]

    @property
    def wrong(self) -> list[int]:
        whole = [record for record in self.records if find_fault(record) is None]
        return [one.index for one in whole if one.token_ids != self._expected[one.index % len(ASKS)]]

    @property
    def summary(self) -> dict[str, int]:
        return {
            "streams": len(self.records),
            "lost": len(self.lost),
            "wrong": len(self.wrong),
            "cut": len(self.cuts),
        }


@asynccontextmanager
async def loaded(stack: ComposeStack, checkpoint: Path) -> AsyncIterator[Streams]:
    """Streams are asked for inside the block, from both gateways; at its end all are awaited."""
    streams = Streams(await undisturbed(checkpoint, "float32", ASKS))
    async with AsyncExitStack() as cleanup:
        sessions = {
            url: await cleanup.enter_async_context(open_session(url, KEY, SESSION_SECONDS)) for url in stack.urls
        }
        client = PatientClient(sessions, MODEL, SystemClock(), Tally())
        stopping = asyncio.Event()
        sending = asyncio.create_task(_send(client, streams, stopping))
        try:
            yield streams
        finally:
            stopping.set()
            async with asyncio.timeout(DRAIN_SECONDS):
                await sending
            # The engine's proxy takes connections for a gateway that is gone, too: these were never accepted.
            streams.cuts = [cut for cut in client.cuts if cut.record.status == 200]


async def _send(client: PatientClient, streams: Streams, stopping: asyncio.Event) -> None:
    async def one(ask: Ask) -> None:
        streams.records.append(await client.fetch(ask, client.now()))

    async with asyncio.TaskGroup() as group:
        index = 0
        while not stopping.is_set():
            if index - len(streams.records) < UNDER_WAY:
                ask = msgspec.structs.replace(ASKS[index % len(ASKS)], index=index)
                group.create_task(one(ask))
                index += 1
            await asyncio.sleep(PAUSE_SECONDS)


async def register(stack: ComposeStack, name: str = MODEL, **limits: Any) -> None:
    """Register the checkpoint under this name."""
    body = {"name": name, "path": f"/models/{MODEL}", "dtype": "float32", "layout": "plain", **limits}
    async with (
        open_session(stack.urls[0], KEY, SESSION_SECONDS) as session,
        session.post("admin/v1/models", json=body) as response,
    ):
        assert response.status in (200, 201), await response.text()


async def serve(stack: ComposeStack, **limits: Any) -> None:
    """Register the model, and wait until it answers."""
    await register(stack, **limits)
    async with open_session(stack.urls[0], KEY, SESSION_SECONDS) as session:
        async with asyncio.timeout(DRAIN_SECONDS):
            while True:
                async with session.post(
                    "v1/completions", json={"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 1}
                ) as response:
                    if response.status == 200:
                        return
                await asyncio.sleep(0.5)
