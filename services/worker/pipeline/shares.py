"""When a pipeline is over: its requests are spread evenly over who ran it, and computed again there from prompt and
tokens (LambdaScale 4.4)."""

import asyncio
from contextlib import suppress

import structlog

from services.worker.live.given import Given
from services.worker.live.parts import Parts
from services.worker.live.request import Request
from services.worker.scheduler import Scheduler
from shared.bus.contract import Refusal
from shared.messages.live import Pull, Pulled, Took
from shared.messages.parameters import Manifest

KEEP_SECONDS = 0.5  # then who led runs what nobody fetched

log = structlog.get_logger()


class Shares:
    """At who led: its own share runs, and the others wait for whoever fetches them. Every `workers`-th is its own."""

    def __init__(self, parts: Parts, manifest: Manifest, scheduler: Scheduler, workers: int) -> None:
        self._parts = parts
        self._version = manifest.version
        self._scheduler = scheduler
        self._given = Given(parts, manifest, scheduler, self._run_here)
        unfinished = scheduler.preempt_all()
        own = unfinished[::workers]
        self._most = -(-(len(unfinished) - len(own)) // (workers - 1))  # for one of the others
        self._kept = {one.request_id: Request(one) for one in unfinished if one not in own}
        for request in self._kept.values():
            request.sequence.held = True
        log.info("pipeline_shared", own=len(own), kept=len(self._kept))

    async def run(self) -> None:
        """Until each is somebody's."""
        with suppress(TimeoutError):
            async with asyncio.timeout(KEEP_SECONDS):
                while self._kept:
                    await self._parts.serving.changes.wait()
        for request in self._kept.values():
            self._run_here(request)
        self._kept.clear()
        await self._given.stopped()

    async def stop(self) -> None:
        """Give nothing any more."""
        self._kept.clear()
        self._given.stop()
        await self._given.stopped()

    def pull(self, command: Pull) -> Pulled:
        """The earliest that are left, a share of them at once: who pulls again may have new ones to prefill by then.
        Raises Refusal 409 for another version."""
        if command.version != self._version:
            raise Refusal(409, f"version: {self._version} is served here, not {command.version}")
        for id in [id for id, one in self._kept.items() if self._scheduler.get(id) is not one.sequence]:
            del self._kept[id]  # it has ended
        if not self._kept:
            return Pulled(over=True)
        leaving = list(self._kept.values())[: min(command.requests, self._most)]
        for request in leaving:
            del self._kept[request.sequence.request_id]
        self._parts.serving.changes.tell()
        return Pulled(tasks=self._given.give(command, leaving), more=bool(self._kept))

    def took(self, command: Took) -> None:
        """Raises Refusal 409 where it is not to have the request."""
        self._given.took(command)

    def lost(self, worker: str) -> None:
        """It is dead."""
        self._given.lost(worker)

    def _run_here(self, request: Request) -> None:
        request.sequence.held = False
        self._parts.serving.wake()
