"""Kills processes of this system that run and do nothing, so that they are started again like those that end."""

import asyncio
from collections.abc import Callable

from livescale.services.supervisor.hung import Hung, Kill
from livescale.services.supervisor.processes import Supervisor
from livescale.shared.bus.contract import Bus, BusError, CallTimeout
from livescale.shared.messages.registry import AskSnapshot
from livescale.shared.subjects import SNAPSHOT

LOOK_SECONDS = 0.5
ANSWER_SECONDS = 0.8


class LeaseWatch:
    """Asks the registry who is dead; `tell` is told whom and why."""

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
            # Else it is being started.
            return self._hung.on_silence(running(), now()) if isinstance(error, CallTimeout) else []
        return self._hung.on_members(snapshot.members, running(), now())

    async def _bus_works(self) -> bool:
        """Or nobody could have answered."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._bus.flush()
        except (BusError, TimeoutError):
            return False
        return True
