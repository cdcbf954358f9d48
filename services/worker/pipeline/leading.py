"""A pipeline that this worker leads, from its first step until its requests are somebody's (LambdaScale 4.3, 4.4)."""

from collections.abc import Callable

import structlog

from livescale.services.worker.instance import Instance
from livescale.services.worker.lifecycle import State
from livescale.services.worker.live.parts import Parts
from livescale.services.worker.loading import Loading
from livescale.services.worker.pipeline.counts import PipelineCounts
from livescale.services.worker.pipeline.leader import Leader, PipelineBroken
from livescale.services.worker.pipeline.shares import Shares
from livescale.services.worker.pipeline.stages import Stages, StagesFailed
from livescale.services.worker.scheduler import Scheduler
from livescale.shared.bus.contract import Refusal
from livescale.shared.transfer.flow_end import together

log = structlog.get_logger()


class Ended(Exception):
    """The last step is over."""


class Leading:
    """`leader` while steps are run, `shares` while something is kept for the others. `shared` is called in between:
    stages are run here no more."""

    def __init__(
        self, parts: Parts, instance: Instance, counts: PipelineCounts, loading: Loading, shared: Callable[[], None]
    ) -> None:
        self.leader: Leader | None = None
        self.shares: Shares | None = None
        self._parts = parts
        self._instance = instance
        self._counts = counts
        self._loading = loading
        self._shared = shared

    async def run(self, stages: Stages) -> None:
        """Until the others have what is theirs, or it broke."""
        reason = f"{self._parts.me} gave up leading"
        try:
            reason = await self._run(stages)
            if self._instance.lifecycle.state in (State.SERVING, State.DRAINING):
                await self._share(stages)
        finally:
            if self._instance.lifecycle.state is State.LIVE:
                self._instance.go_back(reason)

    async def _run(self, stages: Stages) -> str:
        """Run steps to the end; why it came."""
        reason = "its workers are whole"
        try:
            await together(stages.run(), self._run_steps(stages))
        except (StagesFailed, PipelineBroken, Refusal) as error:  # Refusal: it was fenced before it went live
            reason = str(error)
            self._counts.broken.inc()
            log.warning("pipeline_broken", pipeline=stages.command.id, error=reason)
        except Ended:
            log.info("pipeline_over", pipeline=stages.command.id)
        stages.tell_over(reason)
        return reason

    async def _run_steps(self, stages: Stages) -> None:
        """Raises Ended after the last."""
        await stages.ready.wait()
        scheduler = self._instance.go_live(self._loading, stages.command.kv_blocks)
        self.leader = Leader(stages.command, scheduler, self._parts, self._counts, stages.take)
        self._instance.changed()
        await self.leader.run()
        if self._parts.serving.scheduler is scheduler:  # else nothing here is this worker's any more
            self.shares = self._new_shares(stages, scheduler)
        raise Ended

    async def _share(self, stages: Stages) -> None:
        """Serve by itself; what is the others' waits for them."""
        scheduler = self._parts.serving.scheduler
        if scheduler is None:
            return
        shares = self.shares = self.shares or self._new_shares(stages, scheduler)
        self.leader = None
        self._shared()
        self._parts.serving.begin_steps()
        try:
            await shares.run()
        finally:
            await shares.stop()

    def _new_shares(self, stages: Stages, scheduler: Scheduler) -> Shares:
        workers = [self._parts.me, *stages.others]
        before = {} if self.leader is None else self.leader.shares
        return Shares(self._parts, self._loading.manifest, scheduler, workers, before)
