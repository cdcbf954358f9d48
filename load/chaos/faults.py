"""Makes the faults of a schedule happen to a running system."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from load.chaos.schedule import Fault
from services.supervisor.processes import signal_group
from services.supervisor.stack import Stack
from shared.bus.contract import BusError
from shared.messages.scaling import Scale
from shared.subjects import SCALE

SCALE_SECONDS = 5.0


@dataclass(frozen=True)
class Happening:
    """A fault and what was seen of it. `at` is in seconds since the epoch."""

    fault: Fault
    at: float
    note: str


class Tormentor:
    """`happenings` fills as faults come true."""

    def __init__(self, stack: Stack, model: str, now: Callable[[], float], tell: Callable[[str], None]) -> None:
        self._stack = stack
        self._model = model
        self._now = now
        self._tell = tell
        self.happenings: list[Happening] = []

    async def run(self, faults: Sequence[Fault], start: float) -> None:
        """Each fault at its time after `start`; whoever is frozen when this ends or is cancelled goes on."""
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, start + fault.at - self._now()))
                group.create_task(self._inflict(fault), name=str(fault))

    async def _inflict(self, fault: Fault) -> None:
        at = self._now()
        match fault.kind:
            case "kill":
                note = self._signal(fault.target, signal.SIGKILL)
            case "freeze":
                note = self._signal(fault.target, signal.SIGSTOP)
            case "scale":
                note = await self._scale(fault.instances)
        self.happenings.append(Happening(fault, at, note))
        self._tell(f"{fault}{': ' if note else ''}{note}")
        if fault.kind == "freeze":
            await self._thaw(fault)

    async def _thaw(self, fault: Fault) -> None:
        pid = self._stack.supervisor.children[fault.target].pid
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            if pid is not None:
                signal_group(pid, signal.SIGCONT)

    def _signal(self, target: str, number: signal.Signals) -> str:
        pid = self._stack.supervisor.children[target].pid
        if pid is None:  # between a death and the next start
            return "it was not running"
        signal_group(pid, number)
        return ""

    async def _scale(self, instances: int) -> str:
        try:
            scale = Scale(model=self._model, instances=instances)
            accepted = await self._stack.bus.call(SCALE, scale, timeout=SCALE_SECONDS)
        except BusError as error:
            return f"not now: {error}"
        return f"{accepted.actual} -> {accepted.target}"
