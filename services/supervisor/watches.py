"""What the supervisor watches besides processes that end: processes that do nothing, and a server without disk space.

A process whose lease is dead, and that still runs, is killed, so that it is started again like one that ended. A NATS
server whose disk was full writes nothing more, even once there is space again; then it is started again.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

from livescale.services.supervisor.policy import Hung, Kill
from livescale.services.supervisor.processes import Supervisor
from livescale.shared.bus.contract import Ack, Bus, BusError, CallTimeout, Disconnected, ServiceAbsent
from livescale.shared.messages.registry import AskSnapshot
from livescale.shared.subjects import SNAPSHOT

LOOK_SECONDS = 0.5
ANSWER_SECONDS = 0.8

KEY = "supervisor.probe"
STORE_LOOK_SECONDS = 3.0
# One refusal may be a server that is busy, or just being started.
REFUSALS = 2
ROOM_BYTES = 1 << 20


class LeaseWatch:
    """Asks the registry which leases are dead, and kills processes that run and do nothing.

    `tell` is called with name and reason of each that is killed.
    """

    def __init__(
        self, bus: Bus, supervisor: Supervisor, patience_seconds: float, tell: Callable[[str, str], None]
    ) -> None:
        self._bus = bus
        self._supervisor = supervisor
        self._hung = Hung(patience_seconds)
        self._tell = tell

    async def run(self) -> None:
        while True:
            for kill in await self._look():
                self._tell(kill.name, f"pid {kill.pid} does nothing: {kill.reason}; it is killed and started again")
                self._supervisor.kill(kill.name, kill.pid)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> list[Kill]:
        now, running = asyncio.get_running_loop().time, self._supervisor.running
        try:
            snapshot = await self._bus.call(SNAPSHOT, AskSnapshot(), timeout=ANSWER_SECONDS)
        except BusError as error:
            if not await self._bus_works():
                return self._hung.on_deafness(running(), now())
            # A registry that is absent is being started.
            return self._hung.on_silence(running(), now()) if isinstance(error, CallTimeout) else []
        return self._hung.on_members(snapshot.members, running(), now())

    async def _bus_works(self) -> bool:
        """Whether the bus works; if not, no service could have answered."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._bus.flush()
        except (BusError, TimeoutError):
            return False
        return True


class StoreWatch:
    """Writes a key now and then, and calls `restart` where the server refuses it although the disk has room.

    `tell` is called with what an operator has to know. The services put what they keep again after a restart.
    """

    def __init__(self, bus: Bus, store: Path, restart: Callable[[], None], tell: Callable[[str], None]) -> None:
        self._bus = bus
        self._store = store
        self._restart = restart
        self._tell = tell
        self._refusals = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(STORE_LOOK_SECONDS)
            refusal = await self._refusal()
            self._refusals = self._refusals + 1 if refusal else 0
            if self._refusals >= REFUSALS:
                self._help(refusal)

    async def _refusal(self) -> str:
        """Why nothing can be written; empty where it can be, and where no server is there to ask."""
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
