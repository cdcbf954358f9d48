"""What a worker has said of its requests, so that a gateway that lost a frame can ask again. Pure."""

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from livescale.shared.messages.requests import Tokens


@dataclass
class Said:
    """All tokens of a request from `index` on, and the row that brought the last of them."""

    index: int
    token_ids: list[int]
    last: Tokens


class History:
    """Tokens of running requests, and of the last `kept` that ended."""

    def __init__(self, kept: int = 512) -> None:
        self._kept = kept
        self._running: dict[str, Said] = {}
        self._ended: OrderedDict[str, Said] = OrderedDict()

    def record(self, row: Tokens) -> None:
        """Append a row that was sent."""
        said = self._running.get(row.request_id)
        if said is None:
            said = self._running[row.request_id] = Said(row.index, [], row)
        said.token_ids += row.token_ids
        said.last = row
        if row.finish_reason is None:
            return
        self._ended[row.request_id] = self._running.pop(row.request_id)
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
        said = self._running.get(request_id) or self._ended.get(request_id)
        if said is None or index < said.index:
            return None
        return msgspec.structs.replace(said.last, index=index, token_ids=said.token_ids[index - said.index :])
