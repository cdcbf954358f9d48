"""Writing to the key-value store without waiting for it: what is set last is what is kept."""

import asyncio

import structlog

from shared.bus.contract import BusError, KeyValue
from shared.messages.message import Message

RETRY_SECONDS = 1.0

log = structlog.get_logger()


class WriteBehind:
    """`set` returns at once; `run` does the work and tries until it succeeds. `what` names it in the log."""

    def __init__(self, store: KeyValue, what: str) -> None:
        self._store = store
        self._what = what
        self._unsaved: dict[str, Message | None] = {}
        self._wake = asyncio.Event()

    def set(self, key: str, value: Message | None) -> None:
        """Keep `value` under `key`; None deletes what is kept there."""
        self._unsaved[key] = value
        self._wake.set()

    def holds(self, key: str) -> bool:
        """Whether something of this key is still to be written."""
        return key in self._unsaved

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._save()
            except BusError as error:
                log.warning("not_saved", what=self._what, waiting=len(self._unsaved), error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def _save(self) -> None:
        while self._unsaved:
            key, value = next(iter(self._unsaved.items()))
            if value is None:
                await self._store.delete(key)
            else:
                await self._store.put(key, value)
            if self._unsaved.get(key) is value:
                del self._unsaved[key]
