"""The planner's records on the bus's key-value store, so that its successor can tell of them and go on with them."""

import asyncio

import structlog

from shared.bus.contract import BusError, KeyValue, ServiceAbsent
from shared.messages.scaling import ScaleRecord

PREFIX = "scales"
KEPT = 100
RETRY_SECONDS = 1.0

log = structlog.get_logger()


class SavedRecords:
    """Writes behind: `put` returns at once, `run` does the work and tries until it succeeds."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store
        self._kept: dict[str, None] = {}  # ids, oldest first
        self._unsaved: dict[str, ScaleRecord | None] = {}
        self._wake = asyncio.Event()

    async def load(self) -> list[ScaleRecord]:
        """What an earlier planner left, oldest first. Empty on a server that keeps nothing."""
        while True:
            try:
                found = await self._store.list(PREFIX, ScaleRecord)
            except ServiceAbsent as error:
                log.warning("nothing_is_kept", error=str(error))
                return []
            except BusError as error:
                log.warning("records_unreadable", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                records = sorted(found.values(), key=lambda record: (record.decision.at, record.id))
                self._kept = {record.id: None for record in records}
                return records

    def put(self, record: ScaleRecord) -> None:
        self._kept[record.id] = None
        self._unsaved[record.id] = record
        for id in list(self._kept)[: len(self._kept) - KEPT]:
            del self._kept[id]
            self._unsaved[id] = None
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._save()
            except BusError as error:
                log.warning("records_not_saved", waiting=len(self._unsaved), error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def _save(self) -> None:
        while self._unsaved:
            id, record = next(iter(self._unsaved.items()))
            if record is None:
                await self._store.delete(f"{PREFIX}.{id}")
            else:
                await self._store.put(f"{PREFIX}.{id}", record)
            if self._unsaved.get(id) is record:
                del self._unsaved[id]
