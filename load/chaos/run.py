"""The course of a run with faults: start the system, send the load, disturb it until the load ends, wait until the
system is whole again."""

import asyncio
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec

from livescale.load.chaos.client import PatientClient
from livescale.load.chaos.faults import FaultInjector
from livescale.load.chaos.load import ChaosSettings, make_chaos_asks
from livescale.load.chaos.report import ChaosRun
from livescale.load.chaos.schedule import FaultTargets, plan_faults
from livescale.load.chaos.system import (
    HANDED_OVER,
    MODEL,
    RESUMED,
    TOOK_OFFICE,
    LogEvents,
    ask_amiss,
    choose_targets,
    find_left,
    open_sessions,
    shared_memory,
    stack_settings,
)
from livescale.load.client import send_open_loop
from livescale.load.records import Ask, RequestRecord
from livescale.load.screen import Screen, ScreenView
from livescale.load.stats import Tally
from livescale.load.story import Story
from livescale.load.target import LoadTarget, learn_target
from livescale.load.trace import Trace
from livescale.load.watch import end_on_sigterm, watching
from livescale.services.supervisor.processes import Echo
from livescale.services.supervisor.stack import Stack
from livescale.shared.runtime.clock import SystemClock

T = TypeVar("T")

REFRESH_SECONDS = 0.25
# Generous: a slow machine takes its time to start processes and to load models again.
WHOLE_SECONDS = 120.0
# So long a router's word of its queue is of the present.
FRESH_SECONDS = 3.0
PROBE_TOKENS = 16


async def run_chaos(settings: ChaosSettings, checkpoint: Path, trace: Trace, screen: Screen, echo: Echo) -> ChaosRun:
    """Everything that needs the system up; on return it is down again. SIGTERM cancels it, as Ctrl-C does.

    Raises ValueError before anything is started, TargetError, and what a Stack raises.
    """
    end_on_sigterm()
    targets = choose_targets(settings)
    memory, events = shared_memory(), LogEvents(echo)
    async with Stack(stack_settings(settings, checkpoint), progress=screen.note, echo=events.echo) as stack:
        run = await ChaosCourse(settings, stack, screen, events).run(trace, targets)
        pids = [child.pid for child in stack.supervisor.children.values() if child.pid is not None]
    return msgspec.structs.replace(run, left=find_left(pids, memory))


class ChaosCourse:
    """One load with faults, on a system that is up."""

    def __init__(self, settings: ChaosSettings, stack: Stack, screen: Screen, events: LogEvents) -> None:
        self._settings = settings
        self._stack = stack
        self._screen = screen
        self._events = events
        self._seconds = 60 * settings.minutes
        self._story = Story(MODEL)
        self._tally = Tally()
        self._clock = SystemClock()
        self._asks: list[Ask] = []
        self._records: list[RequestRecord] = []

    async def run(self, trace: Trace, targets: FaultTargets) -> ChaosRun:
        """Raises TargetError, and ChildFailed once a process is given up."""
        async with (
            watching(self._stack.bus, self._story, self._clock, self._screen.note),
            open_sessions(self._stack.urls) as sessions,
        ):
            target = await learn_target(next(iter(sessions.values())), MODEL)
            self._asks = make_chaos_asks(trace, target, self._settings.seed)
            client = PatientClient(sessions, MODEL, self._clock, self._tally)
            tormentor = FaultInjector(self._stack, self._story, MODEL, targets.names, client.now, self._screen.note)
            start = client.now()
            await self._watched("load", start, self._disturbed(client, tormentor, targets, start))
            end = client.now()
            not_whole = await self._rest(end)
            await self._probe(client, sessions, target)
            return ChaosRun(
                asks=self._asks,
                records=self._records,
                cuts=client.cuts,
                seen_faults=tormentor.seen_faults,
                story=self._story,
                start=start,
                end=end,
                refused=len(client.refusals),
                resumed=self._events.counts[RESUMED],
                takeovers=self._events.counts[TOOK_OFFICE] - 1,  # the first router took office as well
                handed_over=self._events.counts[HANDED_OVER],
                not_whole=not_whole or await self._rest(end),
            )

    async def _disturbed(
        self, client: PatientClient, tormentor: FaultInjector, targets: FaultTargets, start: float
    ) -> None:
        """Send the load, and make the faults while it runs."""
        settings, disaggregated = self._settings, self._settings.disaggregation == "on"
        switching = [f"worker-{index}" for index in range(settings.workers)] if disaggregated else []
        faults = plan_faults(settings.seed, self._seconds, targets, stalls=settings.stalls, roles=switching)
        self._screen.note(f"{len(self._asks)} requests and {len(faults)} faults in {self._seconds:.0f} s")
        async with asyncio.TaskGroup() as group:
            group.create_task(tormentor.run(faults, start), name="faults")
            group.create_task(send_open_loop(client, self._asks, self._records), name="load")

    async def _rest(self, since: float) -> list[str]:
        """Wait until the system is whole and at rest; what is still amiss after a long while."""
        deadline = self._clock.now() + WHOLE_SECONDS
        while amiss := await self._watched("recovering", since, self._find_amiss()):
            if self._clock.now() > deadline:
                break
            await asyncio.sleep(REFRESH_SECONDS)
        return amiss

    async def _find_amiss(self) -> list[str]:
        last = self._story.queue[-1] if self._story.queue else None
        queue = last if last is not None and last.at > self._clock.wall() - FRESH_SECONDS else None
        return await ask_amiss(self._stack.bus, queue, self._stack.supervisor.children)

    async def _probe(
        self, client: PatientClient, sessions: Mapping[str, aiohttp.ClientSession], target: LoadTarget
    ) -> None:
        """One short request to each gateway, judged like the others."""
        for session in sessions.values():
            ask = Ask(len(self._asks), 0.0, target.vocabulary[:PROBE_TOKENS], PROBE_TOKENS)
            self._asks.append(ask)
            self._records.append(await client.attempt(session, ask, client.now()))

    async def _watched(self, phase: str, since: float, work: Coroutine[Any, Any, T]) -> T:
        """Do the work, and show how things are meanwhile. Raises ChildFailed once a process is given up."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=REFRESH_SECONDS)
                self._stack.supervisor.check()
                self._show(phase, since)
        finally:
            task.cancel()
            await asyncio.wait([task])
        return task.result()

    def _show(self, phase: str, since: float) -> None:
        now = self._clock.wall()
        seconds = self._seconds if phase == "load" else None
        self._screen.show(ScreenView(phase, now - since, seconds, len(self._asks), now, self._story, self._tally))
