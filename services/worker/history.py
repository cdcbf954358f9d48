"""What a worker has said of its requests, so that a gateway that lost a frame can ask again. Pure."""

from collections import OrderedDict

import msgspec

from shared.messages.requests import Tokens


class History:
    """Tokens of running requests, and of the last `kept` that ended."""

    def __init__(self, kept: int = 512) -> None:
        self._kept = kept
        self._running: dict[str, Tokens] = {}
        self._ended: OrderedDict[str, Tokens] = OrderedDict()

    def record(self, row: Tokens) -> None:
        """Append a row that was sent."""
        before = self._running.pop(row.request_id, None)
        if before is not None:
            row = msgspec.structs.replace(row, index=before.index, token_ids=[*before.token_ids, *row.token_ids])
        if row.finish_reason is None:
            self._running[row.request_id] = row
            return
        self._ended[row.request_id] = row
        if len(self._ended) > self._kept:
            self._ended.popitem(last=False)

    def forget(self, request_id: str) -> None:
        """A request that another worker goes on with."""
        self._running.pop(request_id, None)

    def drop_running(self) -> None:
        """Those that run are no longer this worker's."""
        self._running.clear()

    def ended(self) -> list[str]:
        """Requests that ended, as far back as is kept."""
        return [id for id in self._ended if id not in self._running]

    def since(self, request_id: str, index: int) -> Tokens | None:
        """One row with everything from generated token `index` on; None where that is not known here."""
        row = self._running.get(request_id) or self._ended.get(request_id)
        if row is None or index < row.index:
            return None
        return msgspec.structs.replace(row, index=index, token_ids=row.token_ids[index - row.index :])
