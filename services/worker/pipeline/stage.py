"""One stage of a pipeline: batches come in order, are run through its blocks one after the other, and go on."""

import asyncio

from msgspec.structs import replace

from livescale.services.worker.batch import NO_BYTES, Piece
from livescale.services.worker.engine.partial import Passed
from livescale.services.worker.live.handoff import receive, send
from livescale.services.worker.pipeline.running import Running
from livescale.services.worker.pipeline.wire import batch_pieces, fill_pieces
from livescale.shared.links.contract import Peer
from livescale.shared.messages.pipelines import Pipeline, StageBatch, StageDone
from livescale.shared.subjects import STAGE_BATCH
from livescale.shared.transfer.flow_end import together


class StageRun:
    """Stage `index`. A batch is received while the one before is run, and sent while the one after is."""

    def __init__(self, running: Running, command: Pipeline, index: int) -> None:
        self._running = running
        self._bus, self._clock = running.parts.world.bus, running.parts.world.clock
        self._index = index
        self._pipeline = command.id
        stage = command.stages[index]
        self._blocks = range(stage.first, stage.stop)
        self._is_first = all(stage.node.id != running.parts.me for stage in command.stages[:index])
        self._next = command.stages[index + 1].node.id if index + 1 < len(command.stages) else None
        self._came = 0
        self._coming = asyncio.Queue[tuple[StageBatch, float]]()
        self._here = asyncio.Queue[tuple[StageBatch, tuple[Piece, ...], memoryview]]()
        self._run = asyncio.Queue[tuple[StageBatch, Passed]]()

    def take(self, batch: StageBatch) -> None:
        """The next one. Raises ValueError where one before was lost; what is said twice is nothing new."""
        if batch.step > self._came + 1:
            raise ValueError(f"step: {batch.step} came after {self._came}")
        if batch.step == self._came + 1:
            self._came = batch.step
            self._coming.put_nowait((batch, self._clock.now()))

    async def run(self, before: Peer | None, after: Peer | None) -> None:
        """Between these neighbours, until cancelled. Raises LinkError, ValueError for a batch that cannot be, and what
        the engine raises."""
        await together(self._receive(before), self._compute(), self._pass_on(after))

    async def _receive(self, before: Peer | None) -> None:
        running, counts = self._running, self._running.counts
        while True:
            batch, heard = await self._coming.get()
            pieces, activation = batch_pieces(batch, running.manifest, running.limits), NO_BYTES
            if before is not None:
                begun = self._clock.now()
                activation = await receive(before, batch.step, batch.activation_bytes)
                running.moved(batch.activation_bytes, self._clock.now() - begun)
                counts.received.inc(batch.activation_bytes)
                counts.hop_seconds.observe(self._clock.now() - heard)
            self._here.put_nowait((batch, pieces, activation))

    async def _compute(self) -> None:
        while True:
            batch, pieces, activation = await self._here.get()
            batch = await self._fill(batch)
            self._run.put_nowait((batch, await self._running.run_blocks(self._blocks, pieces, activation)))

    async def _fill(self, batch: StageBatch) -> StageBatch:
        """Without what was this worker's of its fills. Only before any of its stages has run the batch: later ones may
        have other requests in the same blocks."""
        running = self._running
        mine = [fill for fill in batch.fills if fill.worker == running.parts.me]
        if not mine or not self._is_first or not running.is_whole():
            return batch
        pieces = [piece for fill in mine for piece in fill_pieces(fill, running.limits)]
        await running.run_blocks(range(len(running.manifest.blocks)), pieces, NO_BYTES)
        running.counts.filled.inc(sum(len(piece.tokens) for piece in pieces))
        return replace(batch, fills=[fill for fill in batch.fills if fill not in mine])

    async def _pass_on(self, after: Peer | None) -> None:
        while True:
            batch, passed = await self._run.get()
            if after is None or self._next is None:
                unfilled = [fill.worker for fill in batch.fills]
                done = StageDone(pipeline=self._pipeline, step=batch.step, tokens=passed.tokens, unfilled=unfilled)
                self._running.done(done)
                continue
            size_bytes = passed.activation.nbytes
            following = replace(batch, stage=self._index + 1, activation_bytes=size_bytes)
            self._bus.publish(STAGE_BATCH, following, id=self._next)
            begun = self._clock.now()
            await send(after, batch.step, passed.activation)
            self._running.moved(size_bytes, self._clock.now() - begun)
