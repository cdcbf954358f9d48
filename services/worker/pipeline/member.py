"""Execution pipelines in one worker: it runs stages while it loads, and may lead."""

import asyncio
from contextlib import suppress

import structlog

from livescale.services.worker.engine.contract import UNAVAILABLE, AdapterUnavailable
from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.instance.held import HeldInstance
from livescale.services.worker.instance.loading import Loading
from livescale.services.worker.live.role import LiveRole
from livescale.services.worker.live.source import LiveSource
from livescale.services.worker.pipeline.adapters import StageAdapters
from livescale.services.worker.pipeline.context import PipelineCounts, StageContext
from livescale.services.worker.pipeline.leader import LedPipeline, PipelineLeader
from livescale.services.worker.pipeline.stages import Stages, StagesFailed
from livescale.services.worker.pipeline.wire import check_pipeline
from livescale.services.worker.tensor_parallel.group import TensorParallelGroup
from livescale.shared.bus.contract import Ack, Context, Refusal
from livescale.shared.messages.model_parallel import (
    MoveKv,
    Pipeline,
    PipelineOver,
    StageAdapter,
    StageAdaptersHere,
    StageBatch,
    StageDone,
)
from livescale.shared.messages.transfers import Node, Serve
from livescale.shared.runtime.settings import SwitchKv

# How long a worker that is whole waits for the end of its pipeline before it serves by itself.
LEAVE_SECONDS = 2.0
FETCH_SECONDS = 0.5  # within which a pipeline's requests are fetched before there are others
FILL_SECONDS = 4.0  # of the 5 for which a planner waits; what is not filled then is computed when the pipeline is over

log = structlog.get_logger()


class PipelineMember:
    """A worker's part in pipelines, one at a time.

    `led_by` is the worker that leads it, or led the last one and may have requests for this worker now. For an instance
    of several workers the first one takes part, and makes the others run the same.
    """

    def __init__(
        self,
        context: WorkerContext,
        instance: HeldInstance,
        group: TensorParallelGroup,
        role: LiveRole,
        source: LiveSource,
        switch_kv: SwitchKv,
    ) -> None:
        self.led_by: Node | None = None
        self.adapters = StageAdapters(context.bus, context.me)
        self._context = context
        self._instance = instance
        self._switch_kv = switch_kv
        self._serving = instance.serving
        self._group = group
        self._role = role
        self._source = source
        self._counts = PipelineCounts(context.world.telemetry)
        self._stages: Stages | None = None
        self._led: LedPipeline | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def pipeline(self) -> str | None:
        """The id of the pipeline that this worker is part of, or None."""
        return None if self._stages is None else self._stages.command.id

    @property
    def span(self) -> str:
        """The blocks that are run here, in words, such as `0-3, 8-11`."""
        return "" if self._stages is None else self._stages.span

    @property
    def kv_way(self) -> str:
        """How KV of what is to be this worker's gets here, in words, once that was decided."""
        way = None if self._stages is None else self._stages.moves.way
        return "" if way is None else f"{'moved' if way.moves else 'computed again'}: {way.reason}"

    @property
    def layers(self) -> int:
        """The number of layers that this worker runs in the pipeline."""
        return 0 if self._stages is None else self._stages.layers

    @property
    def leads(self) -> bool:
        """Whether this worker leads: the requests of the pipeline are its own."""
        return self._leader is not None

    @property
    def _leader(self) -> PipelineLeader | None:
        return None if self._led is None else self._led.leader

    async def form(self, command: Pipeline, context: Context) -> Ack:
        """Answer PIPELINE: run these stages. Raises Refusal as `check_pipeline` does, and 409 without a load."""
        loading, lifecycle = self._instance.loading, self._instance.lifecycle
        if loading is None or not lifecycle.aborts(command.plan_id):
            raise Refusal(409, f"plan_id: this worker does not load for {command.plan_id}")
        if self._running is None:
            self._form(command, loading)
        elif self.pipeline != command.id:
            raise Refusal(409, f"stages of {self.pipeline or 'a pipeline'} are still run here")
        self._instance.changed()
        return Ack()

    def _form(self, command: Pipeline, loading: Loading) -> None:
        if self._serving.scheduler is not None:
            raise Refusal(409, "this worker takes requests by itself")
        # What the other ranks have the planner knows from themselves.
        me, ready = self._context.me, self._instance.lifecycle.ready
        check_pipeline(command, me, loading.manifest, ready, loading.kv_blocks)
        self._stages = stages = Stages(command, self._stage_context(command, loading))
        self.led_by = None if stages.leads else stages.command.leader
        if stages.leads:
            self.adapters.lead(command)
            self._led = LedPipeline(
                self._context,
                self._instance,
                self._role,
                self._counts,
                loading,
                self._stages_over,
            )
        self._running = self._context.start(self._run(stages), f"pipeline {command.id}")
        log.info("pipeline_formed", pipeline=command.id, blocks=stages.span, leads=stages.leads)

    def _stage_context(self, command: Pipeline, loading: Loading) -> StageContext:
        lifecycle, blocks = self._instance.lifecycle, len(loading.manifest.blocks)
        return StageContext(
            self._context,
            self._group,
            self._counts,
            loading.manifest,
            self._instance.limits(loading.command, command.kv_blocks),
            self.done,
            lambda: len(self._group.leader.everywhere(lifecycle.ready)) == blocks,
            self._switch_kv,
            self._instance.changed,
        )

    def batch(self, batch: StageBatch) -> None:
        """Take a batch for a stage that is run here."""
        if self._stages is not None and self.pipeline == batch.pipeline:
            self._stages.take(batch)

    def done(self, done: StageDone) -> None:
        """Note that the last stage is done with a step, or that one cannot be run."""
        if self.pipeline != done.pipeline or self._stages is None:
            return
        if self._leader is not None:
            self._leader.done(done)
        elif done.error is not None:
            self._stages.fail(done.error)

    async def move_kv(self, order: MoveKv, context: Context) -> Ack:
        """Answer MOVE_KV: the leader has KV of what is to be this worker's moved here. Raises Refusal."""
        await self._stages_of(order.pipeline).moves.take(order)
        return Ack()

    async def bring_adapter(self, ask: StageAdapter, context: Context) -> StageAdaptersHere:
        """Answer STAGE_ADAPTER: the leader is going to send rows that use an adapter. Raises Refusal."""
        self._stages_of(ask.pipeline)
        for version in ask.used:
            self.adapters.use_here(version)
        try:
            await self.adapters.bring_here(ask.version)
        except AdapterUnavailable as error:
            raise Refusal(UNAVAILABLE, str(error)) from error
        return StageAdaptersHere(versions=sorted(self._context.runner.adapters))

    async def give_kv(self, order: MoveKv, context: Context) -> Ack:
        """Answer GIVE_KV: another worker of the pipeline gets KV of the layers that are run here. Raises Refusal."""
        self._stages_of(order.pipeline).moves.give(order)
        return Ack()

    def over(self, over: PipelineOver) -> None:
        """End this worker's part, as no step will come. The leader is told so by the planner."""
        if self._stages is None or self._running is None or self.pipeline != over.pipeline:
            return
        if self._stages.leads:
            self._break(over.reason)
        else:
            self._running.cancel()

    def lost(self, worker: str) -> None:
        """Break the pipeline if this dead worker is part of it."""
        if self.led_by is not None and self.led_by.id == worker:
            self.led_by = None
        if self._stages is not None and worker in self._stages.others:
            self._break(f"{worker} is dead")

    async def fill(self) -> None:
        """As the leader, which is whole now, return once all workers have KV of what will be theirs, or in a while."""
        if self._leader is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(FILL_SECONDS):
                    await self._leader.filled()

    def switch(self) -> None:
        """As the leader, which is whole now, serve alone as soon as the steps under way have ended."""
        if self._leader is not None:
            self._leader.end()

    async def leave(self) -> None:
        """As another worker, which is whole now, return once the pipeline is over, or after a while."""
        if self._running is not None and self._stages is not None:
            await asyncio.wait((self._running,), timeout=0 if self._stages.leads else LEAVE_SECONDS)
        await self._stop(f"{self._context.me} serves by itself")

    async def fetch_share(self, command: Serve) -> None:
        """Pull this worker's share from the leader of its last pipeline, for a while at most.

        These requests come before any that the router has, as their clients wait already.
        """
        instance, leader = self._instance, self.led_by
        self.led_by = None
        loading, lifecycle = instance.loading, instance.lifecycle
        if leader is None or loading is None or not lifecycle.may_serve(command):
            return
        scheduler = instance.open(loading, whole=True)
        self._source.begin(command.plan_id, [leader], loading.manifest)
        with suppress(TimeoutError):
            async with asyncio.timeout(FETCH_SECONDS):
                while leader.id in self._source.helping and scheduler.is_empty:
                    await self._serving.changes.wait()

    async def end(self, reason: str) -> None:
        """Leave any pipeline at once, and tell the others why."""
        self.led_by = None
        await self._stop(reason)

    async def _stop(self, reason: str) -> None:
        if self._running is not None:
            if self._stages is not None:
                self._stages.tell_over(reason)
            self._running.cancel()
            await asyncio.wait((self._running,))

    def _stages_of(self, pipeline: str) -> Stages:
        if self._stages is None or self.pipeline != pipeline:
            raise Refusal(409, f"no stage of {pipeline} is run here")
        return self._stages

    def _break(self, reason: str) -> None:
        if self._leader is not None:
            self._leader.give_up(reason)
        elif self._stages is not None:
            self._stages.fail(reason)

    async def _run(self, stages: Stages) -> None:
        try:
            await (self._follow(stages) if self._led is None else self._led.run(stages))
        finally:
            self._led = self._running = None
            self._stages_over()

    async def _follow(self, stages: Stages) -> None:
        try:
            await stages.run()
        except StagesFailed as error:
            log.warning("stages_failed", pipeline=stages.command.id, error=str(error))
            stages.tell_over(str(error))

    def _stages_over(self) -> None:
        self._stages = None
        self.adapters.end()
        self._instance.changed()
