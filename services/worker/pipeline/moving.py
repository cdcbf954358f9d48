"""How who leads a pipeline has KV moved to those whose requests will be, one part at a time for each worker."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from livescale.services.worker.pipeline.filling import Filling
from livescale.services.worker.pipeline.wire import kv_spans
from livescale.services.worker.scheduling.batch import Piece
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.bus.contract import Bus, BusError, Refusal
from livescale.shared.messages.pipelines import MoveKv
from livescale.shared.subjects import MOVE_KV

MOVE_SECONDS = 2.5  # longer than a worker tries
REST_SECONDS = 0.25

log = structlog.get_logger()


class Moving:
    """For `filling`, of requests of `scheduler`. `moved` is called when one more part is there, or does not come."""

    def __init__(
        self, pipeline: str, filling: Filling, scheduler: Scheduler, bus: Bus, moved: Callable[[], None]
    ) -> None:
        self._pipeline = pipeline
        self._filling = filling
        self._scheduler = scheduler
        self._bus = bus
        self._moved = moved
        self._parts: dict[str, asyncio.Task[None]] = {}  # by worker
        self._number = 0

    def begin(self) -> None:
        """Another part for each worker that lacks something and waits for none."""
        for worker in sorted(self._filling.movers - self._parts.keys()):
            pieces = self._filling.begin_move(worker, self._scheduler.placed)
            if pieces:
                self._number += 1
                self._parts[worker] = asyncio.create_task(self._move(worker, self._number, pieces))

    async def rest(self) -> None:
        """The pipeline has stopped: have moved what is left, as far as that is quickly done."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                self.begin()
                while self._parts:
                    await asyncio.wait(self._parts.values(), return_when=asyncio.FIRST_COMPLETED)
                    self.begin()

    async def close(self) -> None:
        """Wait for nothing any more. What is under way may come until its worker leaves the pipeline."""
        for part in self._parts.values():
            part.cancel()
        if self._parts:
            await asyncio.wait(self._parts.values())

    async def _move(self, worker: str, number: int, pieces: Sequence[Piece]) -> None:
        order = MoveKv(pipeline=self._pipeline, number=number, worker=worker, spans=kv_spans(pieces))
        try:
            await self._bus.call(MOVE_KV, order, timeout=MOVE_SECONDS, id=worker)
        except BusError as error:
            # Only a worker that says so is done with it: into another's blocks nothing may come late.
            computes = isinstance(error, Refusal) and error.code == 409
            log.info("kv_not_moved", pipeline=self._pipeline, worker=worker, computes=computes, reason=str(error))
            self._filling.not_moved(worker, computes=computes)
        else:
            self._filling.moved(worker)
        finally:
            del self._parts[worker]
        self._moved()
