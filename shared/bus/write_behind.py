"""What a service keeps on the key-value store: written without waiting, and put again where the store lost it."""

import asyncio
from typing import TypeVar

import structlog

from livescale.shared.bus.contract import BusError, KeyValue, ServiceAbsent, TooLarge
from livescale.shared.messages.message import Message

RETRY_SECONDS = 1.0

M = TypeVar("M", bound=Message)

log = structlog.get_logger()


class WriteBehind:
    """Keeps values in a store. `set` returns at once; `run` writes, and tries until it succeeds. `what` is for the log.

    The value that was set last is kept. All values stay here too, as the store may be lost with its server. A value
    that is too large for the bus is not saved, which the log says.
    """

    def __init__(self, store: KeyValue, what: str) -> None:
        self._store = store
        self._what = what
        self._kept: dict[str, Message] = {}
        self._unsaved: dict[str, Message | None] = {}
        self._wake = asyncio.Event()

    async def load(self, prefix: str, type: type[M]) -> dict[str, M]:
        """Wait for the store and read what a predecessor left below `prefix`. Empty on a server that keeps nothing."""
        while True:
            try:
                found = await self._store.list(prefix, type)
            except ServiceAbsent as error:
                log.warning("nothing_is_kept", what=self._what, error=str(error))
                return {}
            except BusError as error:
                log.warning("saved_state_unreadable", what=self._what, error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._kept.update(found)
                return found

    def set(self, key: str, value: Message | None) -> None:
        """Keep `value` under `key`; None deletes what is kept there."""
        if value is None:
            self._kept.pop(key, None)
        else:
            self._kept[key] = value
        self._unsaved[key] = value
        self._wake.set()

    def save_again(self) -> None:
        """Write all values again: the connection was lost, and perhaps the store with it."""
        self._unsaved = {**self._kept, **self._unsaved}
        self._wake.set()

    async def run(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._save()
            except BusError as error:
                failures += 1
                self._tell(failures, error)
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()
            else:
                if failures:
                    log.info("saved_after_all", what=self._what, failures=failures)
                failures = 0

    def _tell(self, failures: int, error: BusError) -> None:
        """Log the 1st, 2nd, 4th, 8th failure and so on, as a disk may be full for hours."""
        if failures & (failures - 1) == 0:
            waiting = len(self._unsaved)
            log.warning("not_saved", what=self._what, waiting=waiting, failures=failures, error=str(error))

    async def _save(self) -> None:
        while self._unsaved:
            key, value = next(iter(self._unsaved.items()))
            try:
                if value is None:
                    await self._store.delete(key)
                else:
                    await self._store.put(key, value)
            except TooLarge as error:  # trying again does not help, and other values wait
                log.warning("too_large_to_save", what=self._what, key=key, error=str(error))
            if key in self._unsaved and self._unsaved[key] is value:
                del self._unsaved[key]
