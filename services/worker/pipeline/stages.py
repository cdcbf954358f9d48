"""The stages of a pipeline that one worker runs, and its channels to their neighbours."""

import asyncio
from contextlib import AsyncExitStack

import structlog
from msgspec.structs import replace

from livescale.services.worker.engine.contract import StageResult
from livescale.services.worker.pipeline.context import StageContext, close, reach
from livescale.services.worker.pipeline.kv_moves import KvMoves
from livescale.services.worker.pipeline.wire import PastWindow, batch_pieces, fill_pieces
from livescale.services.worker.scheduling.batch import NO_BYTES, ScheduledChunk
from livescale.shared.bus.contract import BusError
from livescale.shared.links.contract import LinkError, Peer
from livescale.shared.messages.model_parallel import Pipeline, PipelineOver, StageBatch, StageDone
from livescale.shared.runtime.waiting import together
from livescale.shared.subjects import PIPELINE_OVER, STAGE_BATCH, STAGE_DONE


class StageRun:
    """One stage of a pipeline, number `index`: batches come in order, run through its blocks, and go on.

    A batch is received while the one before is run, and sent while the one after is.
    """

    def __init__(self, context: StageContext, command: Pipeline, index: int) -> None:
        self._context = context
        self._bus, self._clock = context.worker.bus, context.worker.clock
        self._index = index
        self._pipeline = command.id
        stage = command.stages[index]
        self._blocks = range(stage.first, stage.stop)
        self._is_first = all(stage.node.id != context.worker.me for stage in command.stages[:index])
        self._next = command.stages[index + 1].node.id if index + 1 < len(command.stages) else None
        self._leader = command.leader.id
        self._came = 0
        self._pasts = PastWindow()  # the last stage has it made whole
        self._coming = asyncio.Queue[tuple[StageBatch, float]]()
        self._here = asyncio.Queue[tuple[StageBatch, tuple[ScheduledChunk, ...], memoryview]]()
        self._run = asyncio.Queue[tuple[StageBatch, StageResult]]()

    def take(self, batch: StageBatch) -> None:
        """Take the next batch. Raises ValueError where one before it was lost. A batch that was taken already is
        ignored.
        """
        if batch.step > self._came + 1:
            raise ValueError(f"step: {batch.step} came after {self._came}")
        if batch.step == self._came + 1:
            self._came = batch.step
            self._coming.put_nowait((batch, self._clock.now()))

    async def run(self, before: Peer | None, after: Peer | None) -> None:
        """Run batches between these neighbours, until cancelled.

        Raises LinkError, ValueError for a batch that cannot be run, and what the engine raises.
        """
        await together(self._receive(before), self._compute(), self._pass_on(after))

    async def _receive(self, before: Peer | None) -> None:
        context, counts = self._context, self._context.counts
        while True:
            batch, heard = await self._coming.get()
            if self._next is None:
                batch = replace(batch, pieces=self._pasts.complete(batch.pieces))
            pieces, activation = batch_pieces(batch, context.manifest, context.limits), NO_BYTES
            if before is not None:
                activation = await context.receive(before, batch.step, batch.activation_bytes)
                counts.received.inc(batch.activation_bytes)
                counts.hop_seconds.observe(self._clock.now() - heard)
            self._here.put_nowait((batch, pieces, activation))

    async def _compute(self) -> None:
        while True:
            batch, pieces, activation = await self._here.get()
            batch = await self._fill(batch)
            self._run.put_nowait((batch, await self._context.group.run_blocks(self._blocks, pieces, activation)))

    async def _fill(self, batch: StageBatch) -> StageBatch:
        """Compute this worker's fills of the batch, and return the batch without them.

        That is done only before any of its stages has run the batch, as later ones may have other requests in the same
        blocks.
        """
        context = self._context
        mine = [fill for fill in batch.fills if fill.worker == context.worker.me]
        if not mine or not self._is_first or not context.is_whole():
            return batch
        pieces = [piece for fill in mine for piece in fill_pieces(fill, context.limits)]
        await context.group.run_blocks(range(len(context.manifest.blocks)), pieces, NO_BYTES)
        context.counts.filled.inc(sum(len(piece.tokens) for piece in pieces))
        return replace(batch, fills=[fill for fill in batch.fills if fill not in mine])

    async def _pass_on(self, after: Peer | None) -> None:
        while True:
            batch, passed = await self._run.get()
            if after is None or self._next is None:
                unfilled = [fill.worker for fill in batch.fills]
                self._tell_leader(
                    StageDone(
                        pipeline=self._pipeline,
                        step=batch.step,
                        tokens=passed.chosen.tokens,
                        logprobs=list(passed.chosen.logprobs.items()),
                        prompts=list(passed.chosen.prompts.items()),
                        withheld=[(place, why.reason) for place, why in passed.chosen.withheld.items()],
                        codes=[why.code for why in passed.chosen.withheld.values()],
                        unfilled=unfilled,
                    )
                )
                continue
            size_bytes = passed.activation.nbytes
            following = replace(batch, stage=self._index + 1, activation_bytes=size_bytes)
            self._bus.publish(STAGE_BATCH, following, id=self._next)
            await self._context.send(after, batch.step, passed.activation)

    def _tell_leader(self, done: StageDone) -> None:
        if self._leader == self._context.worker.me:
            self._context.done(done)
        else:
            self._bus.publish(STAGE_DONE, done, id=self._leader)


log = structlog.get_logger()


class StagesFailed(Exception):
    """This worker's stages can run no more batches; the message says why."""


class Stages:
    """The stages that one worker runs.

    `ready` is set once all neighbours were reached. `moves` are those of KV, between any two workers.
    """

    def __init__(self, command: Pipeline, context: StageContext) -> None:
        self.command = command
        self.ready = asyncio.Event()
        self.moves = KvMoves(command, context)
        self._me, self._bus = context.worker.me, context.worker.bus
        self._link = context.worker.link
        self._runs = {
            index: StageRun(context, command, index)
            for index, stage in enumerate(command.stages)
            if stage.node.id == self._me
        }
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def leads(self) -> bool:
        return self.command.leader.id == self._me

    @property
    def others(self) -> list[str]:
        """The ids of the workers that run the other stages, sorted."""
        return sorted({stage.node.id for stage in self.command.stages} - {self._me})

    @property
    def span(self) -> str:
        """The blocks of all stages that are run here, in words, such as `0-3, 8-11`."""
        stages = [self.command.stages[index] for index in self._runs]
        return ", ".join(f"{stage.first}-{stage.stop - 1}" for stage in stages)

    @property
    def layers(self) -> int:
        """How many layers are run here: the blocks without embedding and head."""
        last = self.command.stages[-1].stop - 1
        return sum(0 < block < last for index in self._runs for block in self._blocks(index))

    def take(self, batch: StageBatch) -> None:
        """Take a batch for one of the stages. A batch that cannot be run ends them all."""
        run = self._runs.get(batch.stage)
        try:
            if run is None:
                raise ValueError(f"stage: {batch.stage} is none of this worker's")
            run.take(batch)
        except ValueError as error:
            self.fail(str(error))

    def fail(self, reason: str) -> None:
        """End all stages: `run` raises StagesFailed with this reason."""
        if not self._failed.done():
            self._failed.set_result(reason)

    def tell_over(self, reason: str) -> None:
        """Tell the leader, or as the leader the other workers, that the pipeline ends here."""
        id = self.command.id
        if not self.leads:
            self._bus.publish(STAGE_DONE, StageDone(pipeline=id, step=1, error=reason), id=self.command.leader.id)
            return
        for worker in self.others:
            self._bus.publish(PIPELINE_OVER, PipelineOver(pipeline=id, reason=reason), id=worker)

    async def run(self) -> None:
        """Run the stages until cancelled. Raises StagesFailed."""
        try:
            async with AsyncExitStack() as closing:
                peers = await self._connect(closing)
                self.ready.set()
                runs = (run.run(peers.get(index), peers.get(index + 1)) for index, run in self._runs.items())
                await together(*runs, self.moves.run(), self._fail())
        except (LinkError, BusError, ValueError, RuntimeError, MemoryError) as error:
            raise StagesFailed(str(error) or type(error).__name__) from error

    async def _fail(self) -> None:
        raise StagesFailed(await self._failed)

    def _blocks(self, index: int) -> range:
        stage = self.command.stages[index]
        return range(stage.first, stage.stop)

    async def _connect(self, closing: AsyncExitStack) -> dict[int, Peer]:
        """Open a channel to each neighbour, by the number of the later of the two stages.

        Channels are opened in the order of stages, so that two workers open theirs in the same one.
        """
        peers = {}
        stages = self.command.stages
        for later in range(1, len(stages)):
            for mine, other in ((later, later - 1), (later - 1, later)):
                if mine in self._runs:
                    peers[later] = await reach(self._link, self.command, stages[other].node.address, str(later))
                    closing.push_async_callback(close, peers[later])
        return peers
