"""The planner's records on the bus's key-value store, so that its successor can tell of them and go on with them."""

from livescale.shared.bus.contract import KeyValue
from livescale.shared.bus.write_behind import WriteBehind
from livescale.shared.messages.scaling import ScaleRecord

PREFIX = "scales"
KEPT = 100


class SavedRecords:
    """Writes behind: `put` returns at once, `run` does the work and tries until it succeeds."""

    def __init__(self, store: KeyValue) -> None:
        self._kept: dict[str, None] = {}  # ids, oldest first
        self._writing = WriteBehind(store, "records")
        self.run = self._writing.run
        self.save_again = self._writing.save_again

    async def load(self) -> list[ScaleRecord]:
        """What an earlier planner left, oldest first. Empty on a server that keeps nothing."""
        found = await self._writing.load(PREFIX, ScaleRecord)
        records = sorted(found.values(), key=lambda record: (record.decision.at, record.id))
        self._kept = {record.id: None for record in records}
        return records

    def put(self, record: ScaleRecord) -> None:
        self._kept[record.id] = None
        self._writing.set(f"{PREFIX}.{record.id}", record)
        for id in list(self._kept)[:-KEPT]:
            del self._kept[id]
            self._writing.set(f"{PREFIX}.{id}", None)
