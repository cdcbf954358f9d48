"""The planner's records on the bus's key-value store, so that its successor can tell of them and go on with them."""

import asyncio

import structlog

from shared.bus.contract import BusError, KeyValue, ServiceAbsent
from shared.bus.write_behind import RETRY_SECONDS, WriteBehind
from shared.messages.scaling import ScaleRecord

PREFIX = "scales"
KEPT = 100

log = structlog.get_logger()


class SavedRecords:
    """Writes behind: `put` returns at once, `run` does the work and tries until it succeeds."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store
        self._kept: dict[str, None] = {}  # ids, oldest first
        self._writing = WriteBehind(store, "records")

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
        self._writing.set(f"{PREFIX}.{record.id}", record)
        for id in list(self._kept)[: len(self._kept) - KEPT]:
            del self._kept[id]
            self._writing.set(f"{PREFIX}.{id}", None)

    async def run(self) -> None:
        await self._writing.run()
