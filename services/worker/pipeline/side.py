"""Execution pipelines in one worker: it runs stages while it loads, and may lead."""

import asyncio
from contextlib import suppress

import structlog

from services.worker.instance import Instance
from services.worker.lifecycle import State
from services.worker.live.parts import Parts
from services.worker.loading import Loading
from services.worker.pipeline.counts import PipelineCounts
from services.worker.pipeline.kv_moves import KvMoves
from services.worker.pipeline.leader import Leader, PipelineBroken
from services.worker.pipeline.orders import check_pipeline
from services.worker.pipeline.shares import Shares
from services.worker.pipeline.stage import Running
from services.worker.pipeline.stages import Stages, StagesFailed
from services.worker.scheduler import Scheduler
from shared.bus.contract import Refusal
from shared.messages.pipelines import MoveKv, Pipeline, PipelineOver, StageBatch, StageDone
from shared.messages.transfers import Node
from shared.subjects import PIPELINE_OVER, STAGE_DONE
from shared.transfer.part import together

# How long whoever is whole waits for the end of its pipeline before it serves by itself.
LEAVE_SECONDS = 2.0
FILL_SECONDS = 4.0  # of the 5 for which a planner waits; what is not filled then is computed when the pipeline is over

log = structlog.get_logger()


class Ended(Exception):
    """The last step is over."""


class Pipelines:
    """One pipeline at a time. `led_by`: who leads it, or led the last one and may have requests for this worker now."""

    def __init__(self, parts: Parts, instance: Instance) -> None:
        self.led_by: Node | None = None
        self._parts = parts
        self._instance = instance
        self._counts = PipelineCounts(parts.world.telemetry)
        self._stages: Stages | None = None
        self._leader: Leader | None = None
        self._shares: Shares | None = None
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
        return self._shares

    def form(self, command: Pipeline, loading: Loading) -> None:
        """Run these stages. Raises Refusal."""
        if self._running is not None:
            if self.pipeline == command.id:
                return
            raise Refusal(409, f"stages of {self.pipeline or 'a pipeline'} are still run here")
        if self._parts.serving.scheduler is not None:
            raise Refusal(409, "this worker takes requests by itself")
        me, lifecycle = self._parts.me, self._instance.lifecycle
        check_pipeline(command, me, loading.manifest, lifecycle.ready, loading.kv_blocks)
        world = self._parts.world
        limits = self._instance.limits(loading, command.kv_blocks)
        running = Running(
            me,
            world.bus,
            world.clock,
            self._parts.runner,
            self._counts,
            loading.manifest,
            limits,
            self._came_out,
            lambda: lifecycle.whole,
            self._instance.settings.switch_kv,
        )
        self._stages = stages = Stages(command, me, running, self._parts.link)
        leader = command.stages[0].node
        self.led_by = None if leader.id == me else leader
        work = self._lead(stages, loading) if leader.id == me else self._follow(stages)
        self._running = self._parts.start(work, f"pipeline {command.id}")
        log.info("pipeline_formed", pipeline=command.id, blocks=stages.span, leads=leader.id == me)

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
        leader = self._stages.command.stages[0].node
        if leader.id == self._parts.me:
            self._break(over.reason)
        else:
            self._running.cancel()

    def lost(self, worker: str) -> None:
        """The registry has declared it dead."""
        if self._shares is not None:
            self._shares.lost(worker)
        if self.led_by is not None and self.led_by.id == worker:
            self.led_by = None
        if self._stages is not None and worker in self._others(self._stages):
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
            is_follower = self._stages.command.stages[0].node.id != self._parts.me
            await asyncio.wait((self._running,), timeout=LEAVE_SECONDS if is_follower else 0)
        await self._stop(f"{self._parts.me} serves by itself")

    async def end(self, reason: str) -> None:
        """Nothing is left of it here."""
        self.led_by = None
        await self._stop(reason)

    async def _stop(self, reason: str) -> None:
        if self._running is not None:
            if self._stages is not None:
                self._tell(self._stages, reason)
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

    async def _follow(self, stages: Stages) -> None:
        try:
            await stages.run()
        except StagesFailed as error:
            log.warning("stages_failed", pipeline=stages.command.id, error=str(error))
            self._tell(stages, str(error))
        finally:
            self._gone()

    async def _lead(self, stages: Stages, loading: Loading) -> None:
        """Until the others have what is theirs, or it broke."""
        reason = f"{self._parts.me} gave up leading"
        try:
            reason = await self._led(stages, loading)
            if self._instance.lifecycle.state in (State.SERVING, State.DRAINING):
                await self._share(stages, loading)
        finally:
            if self._instance.lifecycle.state is State.LIVE:
                self._instance.go_back(reason)
            self._gone()

    async def _led(self, stages: Stages, loading: Loading) -> str:
        """Run steps to the end; why it came."""
        reason = "its workers are whole"
        try:
            await together(stages.run(), self._run_steps(stages, loading))
        except (StagesFailed, PipelineBroken, Refusal) as error:  # Refusal: it was fenced before it went live
            reason = str(error)
            self._counts.broken.inc()
            log.warning("pipeline_broken", pipeline=stages.command.id, error=reason)
        except Ended:
            log.info("pipeline_over", pipeline=stages.command.id)
        self._tell(stages, reason)
        return reason

    async def _run_steps(self, stages: Stages, loading: Loading) -> None:
        """Raises Ended after the last."""
        await stages.ready.wait()
        scheduler = self._instance.go_live(loading, stages.command.kv_blocks)
        serving, world = self._parts.serving, self._parts.world
        self._leader = Leader(stages.command, scheduler, serving, world, self._counts, stages.take)
        self._instance.changed()
        await self._leader.run()
        if serving.scheduler is scheduler:  # else nothing here is this worker's any more
            self._shares = self._new_shares(stages, loading, scheduler)
        raise Ended

    async def _share(self, stages: Stages, loading: Loading) -> None:
        """Serve by itself; what is the others' waits for them."""
        scheduler = self._parts.serving.scheduler
        if scheduler is None:
            return
        shares = self._shares = self._shares or self._new_shares(stages, loading, scheduler)
        self._stages = self._leader = None
        self._instance.changed()
        self._parts.serving.begin_steps()
        try:
            await shares.run()
        finally:
            await shares.stop()

    def _new_shares(self, stages: Stages, loading: Loading, scheduler: Scheduler) -> Shares:
        workers = [self._parts.me, *self._others(stages)]
        before = {} if self._leader is None else self._leader.shares
        return Shares(self._parts, loading.manifest, scheduler, workers, before)

    def _gone(self) -> None:
        self._stages = self._leader = self._shares = self._running = None
        self._instance.changed()

    def _came_out(self, done: StageDone) -> None:
        if self._leader is not None:
            self._leader.done(done)
        elif self._stages is not None:
            self._parts.world.bus.publish(STAGE_DONE, done, id=self._stages.command.stages[0].node.id)

    def _tell(self, stages: Stages, reason: str) -> None:
        """The others, or who leads them, that it ends here."""
        command, bus = stages.command, self._parts.world.bus
        leader = command.stages[0].node.id
        if leader != self._parts.me:
            bus.publish(STAGE_DONE, StageDone(pipeline=command.id, step=1, error=reason), id=leader)
            return
        for worker in self._others(stages):
            bus.publish(PIPELINE_OVER, PipelineOver(pipeline=command.id, reason=reason), id=worker)

    def _others(self, stages: Stages) -> list[str]:
        return sorted({stage.node.id for stage in stages.command.stages} - {self._parts.me})
