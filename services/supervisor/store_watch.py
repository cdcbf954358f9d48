"""A NATS server whose disk was full writes nothing more, even once there is room again: it is started again then."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from livescale.shared.bus.contract import Bus, BusError, Disconnected, ServiceAbsent
from livescale.shared.messages.message import Ack

KEY = "supervisor.probe"
LOOK_SECONDS = 3.0
# One refusal may be a server that is busy, or just being started.
REFUSALS = 2
ROOM_BYTES = 1 << 20


class StoreWatch:
    """Writes a word now and then. Where `store` refuses it and its disk has room, `restart` is called; `tell` is for
    whoever can make room. What is kept is put again by those who keep it."""

    def __init__(self, bus: Bus, store: Path, restart: Callable[[], None], tell: Callable[[str], None]) -> None:
        self._bus = bus
        self._store = store
        self._restart = restart
        self._tell = tell
        self._refusals = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            refusal = await self._refusal()
            self._refusals = self._refusals + 1 if refusal else 0
            if self._refusals >= REFUSALS:
                self._help(refusal)

    async def _refusal(self) -> str:
        """Why nothing can be written; empty where it can, or where there is nobody to ask."""
        try:
            await self._bus.kv.put(KEY, Ack())
        except (Disconnected, ServiceAbsent):
            return ""
        except BusError as error:
            return str(error)
        return ""

    def _help(self, refusal: str) -> None:
        free = shutil.disk_usage(self._store).free
        if free >= ROOM_BYTES:
            self._tell(f"nats-server writes nothing ({refusal}) although there is room: it is started again")
            self._refusals = 0
            self._restart()
        elif self._refusals == REFUSALS:
            self._tell(f"nats-server writes nothing ({refusal}): {self._store} is full; all serve on, make room there")
