"""A pipeline that this worker leads, from its first step until each request has its own worker (LambdaScale 4.3,
4.4)."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.instance.held import HeldInstance
from livescale.services.worker.instance.lifecycle import WorkerState
from livescale.services.worker.instance.loading import Loading
from livescale.services.worker.instance.serving import ServingLoop
from livescale.services.worker.live.role import LiveRole
from livescale.services.worker.pipeline.context import PipelineCounts
from livescale.services.worker.pipeline.filling import Filling
from livescale.services.worker.pipeline.kv_moves import KvMover
from livescale.services.worker.pipeline.shares import Shares
from livescale.services.worker.pipeline.stages import Stages, StagesFailed
from livescale.services.worker.pipeline.wire import PastWindow, stage_pieces, withheld
from livescale.services.worker.scheduling.batch import Batch, Chosen, ScheduledChunk
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.model_parallel import Pipeline, StageBatch, StageDone, StageFill
from livescale.shared.runtime.waiting import together

STEP_SECONDS = 20.0  # for all stages together; then the pipeline is given up

log = structlog.get_logger()


class PipelineBroken(Exception):
    """No step of the pipeline can be run any more, for the reason given."""


@dataclass(frozen=True)
class Step:
    """A batch under way, begun at this moment of the clock."""

    batch: Batch
    begun: float


class PipelineLeader:
    """Runs batches of its scheduler through all stages, as many at once as there are stages (LambdaScale 4.3).

    `first` takes them at the first stage. Tokens that come out go to gateways as with any worker.
    """

    def __init__(
        self,
        command: Pipeline,
        scheduler: Scheduler,
        first: Callable[[StageBatch], None],
        *,
        context: WorkerContext,
        serving: ServingLoop,
        counts: PipelineCounts,
    ) -> None:
        self._command = command
        self._scheduler = scheduler
        self._serving = serving
        self._runner = context.runner
        self._clock = context.clock
        self._counts = counts
        self._first = first
        self._pasts = PastWindow()
        self._steps: dict[int, Step] = {}
        self._broken: str | None = None
        self._ends = False
        self._fills = False
        self._filling = Filling(list(dict.fromkeys(stage.node.id for stage in command.stages)))
        self._moving = KvMover(command.id, self._filling, self._next_part, context.bus, serving.wake)

    def _next_part(self, worker: str) -> list[ScheduledChunk]:
        """What this worker gets next of the KV that is to be its own."""
        return self._filling.begin_move(worker, self._scheduler.placed)

    @property
    def shares(self) -> dict[str, str]:
        """The future worker of each request, by its id, as far as it is known."""
        return self._filling.shares

    async def filled(self) -> None:
        """Return once workers have KV of what is to be theirs, all but a little, or nothing is served here any more."""
        self._fills = True
        self._serving.wake()
        try:
            while self._serving.scheduler is self._scheduler and not self._filling.is_done(self._scheduler.placed):
                await self._serving.changes.wait()
        finally:
            self._fills = False

    def end(self) -> None:
        """Begin no step any more. Those under way end."""
        self._ends = True
        self._serving.wake()

    def give_up(self, reason: str) -> None:
        """Have `run` raise PipelineBroken: a stage is lost."""
        self._broken = self._broken or reason
        self._serving.wake()

    def done(self, done: StageDone) -> None:
        """Take what came out of the last stage, or the reason why nothing does."""
        if done.error is not None:
            return self.give_up(f"step {done.step}: {done.error}")
        step = self._steps.get(done.step)
        if step is None:
            return None
        samplings = len(step.batch.samplings)
        if len(done.tokens) != samplings or max(done.tokens, default=0) >= self._scheduler.limits.vocab_size:
            return self.give_up(
                f"step {done.step}: {len(done.tokens)} tokens came, {samplings} of the vocabulary are due"
            )
        chosen = Chosen(done.tokens, dict(done.logprobs), dict(done.prompts), withheld(done))
        del self._steps[done.step]
        self._filling.ended(done.step, done.unfilled)
        self._counts.steps.inc()
        self._counts.in_flight.set(len(self._steps))
        return self._serving.stepped(self._scheduler, step.batch, chosen, step.begun)

    async def run(self) -> None:
        """Run steps until `end` was called and none is under way, or nothing is served here any more.

        Raises PipelineBroken.
        """
        try:
            while self._serving.scheduler is self._scheduler and not (self._ends and not self._steps):
                self._serving.publish(self._scheduler.expire(self._clock.wall()))
                self._begin()
                if self._fills and not self._ends:
                    self._moving.begin()
                if self._broken is not None:
                    raise PipelineBroken(self._broken)
                await self._wait()
            if self._serving.scheduler is self._scheduler:
                await self._moving.rest()
        finally:
            await self._moving.close()
            self._counts.in_flight.set(0)

    def _begin(self) -> None:
        """Begin as many steps as may be under way."""
        at_once = len(self._command.stages)
        while not self._ends and len(self._steps) < at_once:
            batch = self._scheduler.next_batch(at_once, self._runner.rates.pace)
            if batch is None:
                return
            if batch.preempted:
                log.info("requests_preempted", step=batch.step, requests=batch.preempted)
            self._steps[batch.step] = Step(batch, self._clock.now())
            self._counts.in_flight.set(len(self._steps))
            self._first(
                StageBatch(
                    pipeline=self._command.id,
                    stage=0,
                    step=batch.step,
                    block_tokens=self._scheduler.limits.kv_block_tokens,
                    pieces=self._pasts.shorten(stage_pieces(batch.chunks)),
                    activation_bytes=0,
                    fills=self._fill(batch.step),
                )
            )

    def _fill(self, step: int) -> list[StageFill]:
        """Return what one of the workers is to compute along with this step."""
        if not self._fills or self._ends:
            return []
        worker, pieces = self._filling.begin(step, self._scheduler.placed)
        return [StageFill(worker=worker, pieces=stage_pieces(pieces))] if pieces else []

    async def _wait(self) -> None:
        """Wait for whatever changes, or for the first deadline: of a request, or of a step, which ends the pipeline."""
        oldest = min(self._steps.values(), key=lambda step: step.begun, default=None)
        seconds = [] if oldest is None else [oldest.begun + STEP_SECONDS - self._clock.now()]
        if (deadline := self._scheduler.next_deadline()) is not None:
            seconds.append(deadline - self._clock.wall())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(seconds)) if seconds else None):
                await self._serving.changes.wait()
        if oldest is not None and self._clock.now() >= oldest.begun + STEP_SECONDS and oldest in self._steps.values():
            self.give_up(f"step {oldest.batch.step} was not done within {STEP_SECONDS:g} s")


class StepsEnded(Exception):
    """Raised once the last step of the pipeline is over."""


class LedPipeline:
    """One pipeline of this worker's. `leader` is there while steps are run; `stages_over` is called after the last.

    Then requests are kept for the other workers, and `role` answers their pulls.
    """

    def __init__(
        self,
        context: WorkerContext,
        instance: HeldInstance,
        role: LiveRole,
        counts: PipelineCounts,
        loading: Loading,
        stages_over: Callable[[], None],
    ) -> None:
        self.leader: PipelineLeader | None = None
        self._context = context
        self._instance = instance
        self._serving = instance.serving
        self._role = role
        self._counts = counts
        self._loading = loading
        self._stages_over = stages_over
        self._shares: Shares | None = None

    async def run(self, stages: Stages) -> None:
        """Run the pipeline, and return once the other workers have what is theirs, or it broke."""
        reason = f"{self._context.me} gave up leading"
        try:
            reason = await self._run(stages)
            if self._instance.lifecycle.state in (WorkerState.SERVING, WorkerState.DRAINING):
                await self._share(stages)
        finally:
            self._role.shares = None
            if self._instance.lifecycle.state is WorkerState.LIVE:
                self._instance.go_back(reason)

    async def _run(self, stages: Stages) -> str:
        """Run steps until the pipeline ends, and return why it did."""
        reason = "its workers are whole"
        try:
            await together(stages.run(), self._run_steps(stages))
        except (StagesFailed, PipelineBroken, Refusal) as error:  # Refusal: it was fenced before it went live
            reason = str(error)
            self._counts.broken.inc()
            log.warning("pipeline_broken", pipeline=stages.command.id, error=reason)
        except StepsEnded:
            log.info("pipeline_over", pipeline=stages.command.id)
        stages.tell_over(reason)
        return reason

    async def _run_steps(self, stages: Stages) -> None:
        """Run steps. Raises StepsEnded after the last."""
        await stages.ready.wait()
        scheduler = self._instance.go_live(self._loading, stages.command.kv_blocks)
        self.leader = PipelineLeader(
            stages.command,
            scheduler,
            stages.take,
            context=self._context,
            serving=self._serving,
            counts=self._counts,
        )
        self._instance.changed()
        await self.leader.run()
        if self._serving.scheduler is scheduler:  # else nothing here is this worker's any more
            self._keep_shares(stages, scheduler)
        raise StepsEnded

    async def _share(self, stages: Stages) -> None:
        """Serve alone, while what is the other workers' waits for them."""
        scheduler = self._serving.scheduler
        if scheduler is None:
            return
        shares = self._shares or self._keep_shares(stages, scheduler)
        self.leader = None
        self._stages_over()
        self._serving.begin_steps()
        try:
            await shares.run()
        finally:
            await shares.stop()

    def _keep_shares(self, stages: Stages, scheduler: Scheduler) -> Shares:
        workers = [self._context.me, *stages.others]
        before = {} if self.leader is None else self.leader.shares
        manifest = self._loading.manifest
        shares = Shares(self._serving, self._role.hand_offs, manifest, scheduler, workers, before)
        self._shares = self._role.shares = shares
        return shares
