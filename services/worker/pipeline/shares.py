"""When a pipeline is over: its requests are spread evenly over who ran it, and computed again there from prompt and
tokens (LambdaScale 4.4)."""

import asyncio
from contextlib import suppress
from functools import partial

import structlog
from msgspec.structs import replace

from services.worker.live.givings import Givings
from services.worker.live.parts import Parts
from services.worker.scheduler import Scheduler
from services.worker.sequence import Sequence
from shared.bus.contract import Refusal
from shared.deadlines import leaving
from shared.messages.live import Pull, Pulled, Task, Took

KEEP_SECONDS = 0.5  # then who led runs what nobody fetched

log = structlog.get_logger()


class Shares:
    """At who led: its own share runs, and the others wait for whoever fetches them. Every `workers`-th is its own."""

    def __init__(self, parts: Parts, version: str, scheduler: Scheduler, workers: int) -> None:
        self._parts = parts
        self._version = version
        self._scheduler = scheduler
        self._givings = Givings(parts, scheduler)
        unfinished = scheduler.preempt_all()
        own = unfinished[::workers]
        self._kept = {one.request_id: one for one in unfinished if one not in own}
        for sequence in self._kept.values():
            sequence.held = True
        log.info("pipeline_shared", own=len(own), kept=len(self._kept))

    async def run(self) -> None:
        """Until each is somebody's."""
        with suppress(TimeoutError):
            async with asyncio.timeout(KEEP_SECONDS):
                while self._kept:
                    await self._parts.serving.changes.wait()
        for sequence in self._kept.values():
            self._run_here(sequence)
        self._kept.clear()
        await self._givings.ended()

    async def stop(self) -> None:
        """Give nothing any more."""
        self._kept.clear()
        self._givings.stop()
        await self._givings.ended()

    def pull(self, command: Pull) -> Pulled:
        """The earliest that is left. Raises Refusal 409 for another version."""
        if command.version != self._version:
            raise Refusal(409, f"version: {self._version} is served here, not {command.version}")
        for id in [id for id, one in self._kept.items() if self._scheduler.get(id) is not one]:
            del self._kept[id]  # it has ended
        if not self._kept:
            return Pulled(over=True)
        sequence = self._kept.pop(next(iter(self._kept)))
        self._parts.serving.changes.tell()
        self._givings.give(command, sequence, partial(self._run_here, sequence))
        request = replace(sequence.request, generated=sequence.tokens[sequence.prompt_tokens :])
        waited = self._parts.serving.waited(sequence.request_id)
        return Pulled(task=Task(request=leaving(request, self._parts.world.clock.wall()), layers=0, waited=waited))

    def took(self, command: Took) -> None:
        """Raises Refusal 409 where it is not to have the request."""
        self._givings.took(command)

    def lost(self, worker: str) -> None:
        """It is dead."""
        self._givings.lost(worker)

    def _run_here(self, sequence: Sequence) -> None:
        sequence.held = False
        self._parts.serving.wake()
