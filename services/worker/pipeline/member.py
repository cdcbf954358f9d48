"""Execution pipelines in one worker: it runs stages while it loads, and may lead."""

import asyncio
from contextlib import suppress

import structlog

from livescale.services.worker.instance import HeldInstance
from livescale.services.worker.live.parts import Parts
from livescale.services.worker.loading import Loading
from livescale.services.worker.metrics import PipelineCounts
from livescale.services.worker.pipeline.context import StageContext
from livescale.services.worker.pipeline.kv_moves import KvMoves
from livescale.services.worker.pipeline.leader import LedPipeline, PipelineLeader
from livescale.services.worker.pipeline.shares import Shares
from livescale.services.worker.pipeline.stages import Stages, StagesFailed
from livescale.services.worker.pipeline.wire import check_pipeline
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.pipelines import MoveKv, Pipeline, PipelineOver, StageBatch, StageDone
from livescale.shared.messages.transfers import Node
from livescale.shared.subjects import STAGE_DONE

# How long whoever is whole waits for the end of its pipeline before it serves by itself.
LEAVE_SECONDS = 2.0
FILL_SECONDS = 4.0  # of the 5 for which a planner waits; what is not filled then is computed when the pipeline is over

log = structlog.get_logger()


class PipelineMember:
    """One pipeline at a time. `led_by`: who leads it, or led the last one and may have requests for this worker now.

    Of an instance of several workers the first takes part, and has the others run what it runs.
    """

    def __init__(self, parts: Parts, instance: HeldInstance) -> None:
        self.led_by: Node | None = None
        self._parts = parts
        self._instance = instance
        self._counts = PipelineCounts(parts.world.telemetry)
        self._stages: Stages | None = None
        self._leading: LedPipeline | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def pipeline(self) -> str | None:
        """Its id."""
        return None if self._stages is None else self._stages.command.id

    @property
    def span(self) -> str:
        """The blocks that are run here."""
        return "" if self._stages is None else self._stages.span

    @property
    def kv_way(self) -> str:
        """How KV of what is to be its own gets here, in words, once that was decided."""
        way = None if self._stages is None else self._stages.moves.way
        return "" if way is None else f"{'moved' if way.moves else 'computed again'}: {way.reason}"

    @property
    def layers(self) -> int:
        """That are run here."""
        return 0 if self._stages is None else self._stages.layers

    @property
    def leads(self) -> bool:
        """Whether requests are its own."""
        return self._leader is not None

    @property
    def shares(self) -> Shares | None:
        """What is kept for the others of a pipeline that is over."""
        return None if self._leading is None else self._leading.shares

    @property
    def _leader(self) -> PipelineLeader | None:
        return None if self._leading is None else self._leading.leader

    def form(self, command: Pipeline, loading: Loading) -> None:
        """Run these stages. Raises Refusal."""
        if self._running is not None:
            if self.pipeline == command.id:
                return
            raise Refusal(409, f"stages of {self.pipeline or 'a pipeline'} are still run here")
        if self._parts.serving.scheduler is not None:
            raise Refusal(409, "this worker takes requests by itself")
        # What the other ranks have the planner knows from themselves.
        me, ready = self._parts.me, self._instance.lifecycle.ready
        check_pipeline(command, me, loading.manifest, ready, loading.kv_blocks)
        self._stages = stages = Stages(command, self._new_running(command, loading), self._parts.link)
        self.led_by = None if stages.leads else stages.leader
        if stages.leads:
            self._leading = LedPipeline(self._parts, self._instance, self._counts, loading, self._stages_over)
        self._running = self._parts.start(self._run(stages), f"pipeline {command.id}")
        log.info("pipeline_formed", pipeline=command.id, blocks=stages.span, leads=stages.leads)

    def _new_running(self, command: Pipeline, loading: Loading) -> StageContext:
        ranks, lifecycle, blocks = self._parts.ranks, self._instance.lifecycle, len(loading.manifest.blocks)
        return StageContext(
            self._parts,
            self._counts,
            loading.manifest,
            self._instance.limits(loading, command.kv_blocks),
            self._came_out,
            lambda: len(ranks.leader.everywhere(lifecycle.ready)) == blocks,
            self._instance.settings.switch_kv,
            self._instance.changed,
        )

    def batch(self, batch: StageBatch) -> None:
        """For a stage that is run here."""
        if self._stages is not None and self.pipeline == batch.pipeline:
            self._stages.take(batch)

    def done(self, done: StageDone) -> None:
        """The last stage is done with a step, or one cannot be run."""
        if self.pipeline != done.pipeline or self._stages is None:
            return
        if self._leader is not None:
            self._leader.done(done)
        elif done.error is not None:
            self._stages.fail(done.error)

    async def move_kv(self, order: MoveKv) -> None:
        """The leader has KV of what is to be this worker's moved here. Raises Refusal."""
        await self._moves(order).take(order)

    def give_kv(self, order: MoveKv) -> None:
        """Another worker of the pipeline gets KV of the layers that are run here. Raises Refusal."""
        self._moves(order).give(order)

    def over(self, over: PipelineOver) -> None:
        """No step will come; who leads is told so by the planner."""
        if self._stages is None or self._running is None or self.pipeline != over.pipeline:
            return
        if self._stages.leads:
            self._break(over.reason)
        else:
            self._running.cancel()

    def lost(self, worker: str) -> None:
        """The registry has declared it dead."""
        if self.shares is not None:
            self.shares.lost(worker)
        if self.led_by is not None and self.led_by.id == worker:
            self.led_by = None
        if self._stages is not None and worker in self._stages.others:
            self._break(f"{worker} is dead")

    async def fill(self) -> None:
        """This worker leads and is whole: return once everybody has KV of what is to be its own, or after a while."""
        if self._leader is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(FILL_SECONDS):
                    await self._leader.filled()

    def switch(self) -> None:
        """This worker leads and is whole: serve by itself as soon as the steps under way have ended."""
        if self._leader is not None:
            self._leader.end()

    async def leave(self) -> None:
        """This worker is whole, and does not lead: serve by itself once the pipeline is over, or after a while."""
        if self._running is not None and self._stages is not None:
            await asyncio.wait((self._running,), timeout=0 if self._stages.leads else LEAVE_SECONDS)
        await self._stop(f"{self._parts.me} serves by itself")

    async def end(self, reason: str) -> None:
        """Nothing is left of it here."""
        self.led_by = None
        await self._stop(reason)

    async def _stop(self, reason: str) -> None:
        if self._running is not None:
            if self._stages is not None:
                self._stages.tell_over(reason)
            self._running.cancel()
            await asyncio.wait((self._running,))

    def _moves(self, order: MoveKv) -> KvMoves:
        if self._stages is None or self.pipeline != order.pipeline:
            raise Refusal(409, f"no stage of {order.pipeline} is run here")
        return self._stages.moves

    def _break(self, reason: str) -> None:
        if self._leader is not None:
            self._leader.give_up(reason)
        elif self._stages is not None:
            self._stages.fail(reason)

    async def _run(self, stages: Stages) -> None:
        try:
            await (self._follow(stages) if self._leading is None else self._leading.run(stages))
        finally:
            self._leading = self._running = None
            self._stages_over()

    async def _follow(self, stages: Stages) -> None:
        try:
            await stages.run()
        except StagesFailed as error:
            log.warning("stages_failed", pipeline=stages.command.id, error=str(error))
            stages.tell_over(str(error))

    def _stages_over(self) -> None:
        self._stages = None
        self._instance.changed()

    def _came_out(self, done: StageDone) -> None:
        if self._leader is not None:
            self._leader.done(done)
        elif self._stages is not None:
            self._parts.world.bus.publish(STAGE_DONE, done, id=self._stages.leader.id)
