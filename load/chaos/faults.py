"""Injects the faults of a schedule into a running system: kills, freezes, stalls, scales and changes of roles."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from livescale.load.chaos.schedule import LOADING, SOURCE, Fault
from livescale.load.story import Story
from livescale.services.supervisor.processes import signal_group
from livescale.services.supervisor.stack import Stack
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.scaling import Scale, SetRole
from livescale.shared.subjects import ROLE, SCALE

SCALE_SECONDS = 5.0
STALL_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class SeenFault:
    """A fault and what was seen of it. `at` is in seconds since the epoch. `struck` says whether the fault took effect,
    and `victim` names the process."""

    fault: Fault
    at: float
    note: str
    victim: str = ""
    struck: bool = True

    def __str__(self) -> str:
        return f"{self.fault}{': ' if self.note else ''}{self.note}"

    @property
    def kind(self) -> str:
        """What was done to a process of which service."""
        return f"{self.fault.kind} {self.victim.rpartition('-')[0] or self.victim}".strip()


class FaultInjector:
    """`seen_faults` fills as faults come true. `allowed` are the processes that may be hit."""

    def __init__(
        self,
        stack: Stack,
        story: Story,
        model: str,
        allowed: Sequence[str],
        now: Callable[[], float],
        tell: Callable[[str], None],
    ) -> None:
        self._stack = stack
        self._story = story
        self._model = model
        self._allowed = allowed
        self._now = now
        self._tell = tell
        self.seen_faults: list[SeenFault] = []
        self._holds: Counter[int] = Counter()  # by process: faults that have it stand still

    async def run(self, faults: Sequence[Fault], start: float) -> None:
        """Make each fault at its time after `start`. Processes that are frozen when this ends or is cancelled go on."""
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, start + fault.at - self._now()))
                group.create_task(self._inflict(fault), name=str(fault))

    async def _inflict(self, fault: Fault) -> None:
        match fault.kind:
            case "kill":
                self._hit(fault, signal.SIGKILL)
            case "freeze":
                pid = self._hit(fault, signal.SIGSTOP)
                if pid is not None:
                    await self._thaw(pid, fault.seconds)
            case "scale":
                await self._scale(fault)
            case "stall":
                await self._stall(fault)
            case "role":
                await self._give_role(fault)

    def _hit(self, fault: Fault, number: signal.Signals) -> int | None:
        """Signal the target; its pid if there was one."""
        at = self._now()
        victim = find_victim(fault.target, self._story, self._allowed)
        if victim is None:
            self._note(SeenFault(fault, at, "there was none", struck=False))
            return None
        pid = self._stack.supervisor.children[victim].pid
        if pid is None:  # between a death and the next start
            self._note(SeenFault(fault, at, "it was not running", victim, struck=False))
            return None
        if number == signal.SIGSTOP:
            self._hold(pid)
        else:
            signal_group(pid, number)
        self._note(SeenFault(fault, at, "" if victim == fault.target else victim, victim))
        return pid

    async def _thaw(self, pid: int, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            self._let_go(pid)

    async def _stall(self, fault: Fault) -> None:
        """Stop all processes for a while, those included that are started meanwhile."""
        at, held = self._now(), set[int]()
        self._note(SeenFault(fault, at, ""))
        try:
            while self._now() < at + fault.seconds:
                for child in self._stack.supervisor.children.values():
                    if child.pid is not None and child.pid not in held:
                        held.add(child.pid)
                        self._hold(child.pid)
                await asyncio.sleep(STALL_LOOK_SECONDS)
        finally:
            for pid in held:
                self._let_go(pid)

    def _hold(self, pid: int) -> None:
        """Stop a process for one fault; another fault may hold it, too."""
        self._holds[pid] += 1
        signal_group(pid, signal.SIGSTOP)

    def _let_go(self, pid: int) -> None:
        self._holds[pid] -= 1
        if not self._holds[pid]:
            signal_group(pid, signal.SIGCONT)

    async def _scale(self, fault: Fault) -> None:
        at = self._now()
        try:
            scale = Scale(model=self._model, instances=fault.instances)
            accepted = await self._stack.bus.call(SCALE, scale, timeout=SCALE_SECONDS)
        except BusError as error:
            self._note(SeenFault(fault, at, f"not now: {error}", struck=False))
        else:
            self._note(SeenFault(fault, at, f"{accepted.actual} -> {accepted.target}"))
        if fault.then is not None:
            await asyncio.sleep(fault.then.at)
            await self._inflict(fault.then)

    async def _give_role(self, fault: Fault) -> None:
        at = self._now()
        try:
            order = SetRole(worker=fault.target, role=fault.role)
            await self._stack.bus.call(ROLE, order, timeout=SCALE_SECONDS)
        except BusError as error:
            self._note(SeenFault(fault, at, f"not now: {error}", struck=False))
        else:
            self._note(SeenFault(fault, at, "", fault.target))

    def _note(self, happening: SeenFault) -> None:
        self.seen_faults.append(happening)
        self._tell(str(happening))


def find_victim(target: str, story: Story, allowed: Sequence[str]) -> str | None:
    """Return the process of this name, or one that has this part in a scale; None where none that may be hit has it."""
    match target:
        case name if name in allowed:
            return name
        case str() if target == LOADING:
            able = [id for id, report in story.workers.items() if report.state == "loading"]
        case str() if target == SOURCE:
            running = [record.plan for record in story.scales.values() if record.state == "loading" and record.plan]
            able = [path[0] for plan in running for path in plan.paths]
        case _:
            able = []
    return min((id for id in able if id in allowed), default=None)
