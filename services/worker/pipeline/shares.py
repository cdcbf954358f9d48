"""What happens to requests when a pipeline is over: they are spread evenly over the workers that ran it, and go on
there.

KV that a worker lacks is computed again from prompt and tokens (LambdaScale 4.4).
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import structlog

from livescale.services.worker.instance.serving import ServingLoop
from livescale.services.worker.live.handoff_send import HandOffOrigin, HandOffSender, QueuedRequest
from livescale.services.worker.pipeline.filling import share_out
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.live import Pull, Pulled
from livescale.shared.messages.parameters import Manifest

KEEP_SECONDS = 0.5  # afterwards the leader runs the requests that were not fetched

log = structlog.get_logger()


class Shares:
    """Requests that the leader of a pipeline, the first of `workers`, keeps for the other workers.

    The leader's own share runs. `before` names the future worker of each request, where that is known. A worker that
    has KV of its requests goes on from that.
    """

    def __init__(
        self,
        serving: ServingLoop,
        hand_offs: HandOffSender,
        manifest: Manifest,
        scheduler: Scheduler,
        workers: Sequence[str],
        before: Mapping[str, str],
    ) -> None:
        self._serving = serving
        self._hand_offs = hand_offs
        self._scheduler = scheduler
        self._origin = HandOffOrigin(manifest, scheduler, self._run_here)
        unfinished = scheduler.in_order
        shares = self._shares = share_out([one.request_id for one in unfinished], workers, before)
        others = [one for one in unfinished if shares[one.request_id] != workers[0]]
        self._kept = {one.request_id: QueuedRequest(one, filled=one.filled) for one in others}
        scheduler.start_over(kept=shares.keys() - self._kept.keys())
        for request in self._kept.values():
            request.sequence.held = True
        log.info("pipeline_shared", own=len(unfinished) - len(others), kept=len(others))

    async def run(self) -> None:
        """Return once each request is some worker's."""
        with suppress(TimeoutError):
            async with asyncio.timeout(KEEP_SECONDS):
                while self._kept:
                    await self._serving.changes.wait()
        for request in self._kept.values():
            self._run_here(request)
        self._kept.clear()
        await self._hand_offs.stopped(self._origin)

    async def stop(self) -> None:
        """Give nothing more, and return once nothing is being sent."""
        self._kept.clear()
        self._hand_offs.stop(self._origin)
        await self._hand_offs.stopped(self._origin)

    async def pull(self, command: Pull) -> Pulled:
        """Return the share of the worker that pulls, at once, as it may have new requests to prefill by its next pull.

        Raises Refusal 409 for another version.
        """
        version = self._origin.manifest.version
        if command.version != version:
            raise Refusal(409, f"version: {version} is served here, not {command.version}")
        for id in [id for id, one in self._kept.items() if self._scheduler.get(id) is not one.sequence]:
            del self._kept[id]  # it has ended
        theirs = [one for id, one in self._kept.items() if self._shares[id] == command.worker]
        if not theirs:
            return Pulled(over=True)
        leaving = theirs[: command.requests]
        for request in leaving:
            del self._kept[request.sequence.request_id]
        self._serving.changes.tell()
        return Pulled(tasks=self._hand_offs.give(command, leaving, self._origin), more=len(leaving) < len(theirs))

    def _run_here(self, request: QueuedRequest) -> None:
        request.sequence.held = False
        self._serving.wake()
