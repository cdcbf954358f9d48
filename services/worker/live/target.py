"""A worker that takes requests while its parameters still arrive (BlitzScale 5.2).

It runs the layers that it has, and sources pull requests away with the layers done.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import assert_never

import structlog

from livescale.services.worker.engine.contract import RankLost
from livescale.services.worker.live.context import LiveContext
from livescale.services.worker.live.handoff_send import HandOffOrigin, HandOffSender, QueuedRequest
from livescale.services.worker.live.planner import LayerPlanner
from livescale.services.worker.live.policy import (
    BatchBudget,
    FinishTask,
    GiveBack,
    GiveTask,
    LiveTask,
    QueueEffect,
    Release,
    RunLayer,
)
from livescale.services.worker.live.queue import LiveQueue, QueuePhase
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.live import Pull, Pulled
from livescale.shared.messages.parameters import Manifest

POLL_SECONDS = 0.5  # how long a pull is held while there is nothing to give

log = structlog.get_logger()


class LiveTarget:
    """One live load.

    While blocks are missing every request is in the queue, and none is the scheduler's to run. After the last block the
    scheduler runs all, from the layer at which they stand, and those that no step has begun may still be pulled.
    """

    def __init__(
        self,
        manifest: Manifest,
        scheduler: Scheduler,
        queue: LiveQueue,
        planner: LayerPlanner | None,
        first_layer: Callable[[], None],
        *,
        context: LiveContext,
        hand_offs: HandOffSender,
    ) -> None:
        """`planner` is None but in the mode zigzag-ilp. `first_layer` is called once, after the first layer was run."""
        self.queue = queue
        self.origin = HandOffOrigin(manifest, scheduler, self._returned)
        self._scheduler = scheduler
        self._planner = planner
        self._first_layer: Callable[[], None] | None = first_layer
        self._serving = context.serving
        self._group = context.group
        self._hand_offs = hand_offs
        self._clock = context.worker.clock
        self._counts = context.counts
        self._requests: dict[str, QueuedRequest] = {}
        self._without_adapter: list[QueuedRequest] = []  # which have KV blocks, and are not in the queue yet
        self._pulls: dict[str, tuple[Pull, asyncio.Future[Pulled]]] = {}

    async def run(self) -> None:
        """Run layers until all blocks are here, then hand over to the steps of the whole model."""
        try:
            await self._run_layers()
        except RankLost as error:
            if self._serving.scheduler is self._scheduler:
                self._serving.on_rank_lost(str(error))

    async def _run_layers(self) -> None:
        while self.queue.phase is QueuePhase.LIVE:
            self._serving.publish(self._scheduler.expire(self._clock.wall()))
            self._forget()
            self._take_in()
            run = self._perform(self.queue.next())
            if run is None:
                await self._wait()
            else:
                await self._run_layer(run)
        for request in (*self._without_adapter, *self._requests.values()):
            request.sequence.held = False
        self._serving.begin_steps()

    async def plan(self, planner: LayerPlanner) -> None:
        """Beside `run`, keep to the best number of layers of each request, as far as the planner knows it."""
        while self.queue.phase is QueuePhase.LIVE:
            rule = await planner.plan(self.queue.unbegun, self._clock.now())
            if rule is None:
                await self._serving.changes.wait()
            else:
                self._perform(self.queue.go_by(rule))
                self._serving.changes.tell()

    def layer_ready(self, layer: int) -> None:
        """Note that the block of this layer is laid out. The head counts as one more layer."""
        self._forget()
        self._perform(self.queue.block_ready(layer))
        if self._planner is not None:
            self._planner.seen.arrived(self.queue.loaded, self._clock.now())
        self._serving.changes.tell()

    async def pull(self, command: Pull) -> Pulled:
        """Return the earliest requests that may leave, or none after a while. Raises Refusal 409 where KV would not
        fit.
        """
        block_tokens = self._scheduler.limits.kv_block_tokens
        if (command.version, command.block_tokens) != (self.origin.manifest.version, block_tokens):
            raise Refusal(409, f"KV here has blocks of {block_tokens} tokens, of {self.origin.manifest.version}")
        if len(command.ranks) != len(self._group.leader.others):
            raise Refusal(409, f"ranks: this instance has {len(self._group.leader.others) + 1} of them")
        self._forget()
        self.withdraw(command.worker)
        answered: asyncio.Future[Pulled] = asyncio.get_running_loop().create_future()
        self._pulls[command.worker] = command, answered
        try:
            self._perform(self.queue.pull(command.worker, BatchBudget(command.requests, command.rows)))
            if command.waits or len(self.queue):
                await asyncio.wait((answered,), timeout=POLL_SECONDS)
        finally:
            if not answered.done():
                self.withdraw(command.worker)
        return answered.result()

    def withdraw(self, source: str) -> None:
        """Make the pull of this source void, if it has one here."""
        self.queue.withdraw(source)
        self._answer(source, Pulled())

    async def stop(self, reason: str) -> None:
        """Give nothing any more. Once this returns, no data of this worker is being read."""
        self._perform(self.queue.abort(reason))
        self._hand_offs.stop(self.origin)
        await self._hand_offs.stopped(self.origin)

    async def _wait(self) -> None:
        """Wait for whatever changes, or for the first deadline."""
        deadline = self._scheduler.next_deadline()
        seconds = None if deadline is None else max(0.0, deadline - self._clock.wall())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._serving.changes.wait()

    def _take_in(self) -> None:
        """Put what has KV blocks now into the queue. A request whose adapter is missing would hold up the others there,
        and comes into it with its adapter."""
        coming = [one for one in self._without_adapter if self._scheduler.get(one.request_id) is one.sequence]
        coming += map(QueuedRequest, self._scheduler.start())
        for request in coming:
            request.sequence.held = True
            if not request.sequence.awaits_adapter:
                self._append(request)
        self._without_adapter = [one for one in coming if one.sequence.awaits_adapter]

    def _append(self, request: QueuedRequest) -> None:
        sequence = request.sequence
        self._requests[sequence.request_id] = request
        rows, priority = len(sequence.tokens), sequence.request.priority
        queued = LiveTask(sequence.request_id, sequence.arrival, priority=priority, rows=rows)
        self._perform(self.queue.append(queued, sequence.layers_done))

    def _forget(self) -> None:
        """Take out of the queue what has ended, and what a step has begun."""
        for id, request in list(self._requests.items()):
            if self._scheduler.get(id) is not request.sequence or self._scheduler.is_begun(request.sequence):
                del self._requests[id]
                self._perform(self.queue.remove(id))

    async def _run_layer(self, run: RunLayer) -> None:
        requests, began = [self._requests[id] for id in run.tasks], self._clock.now()
        self._serving.went_live(request.sequence.request_id for request in requests if request.partial is None)
        partials = [request.begun() for request in requests]
        try:
            await self._group.run_layer(partials)
        except RankLost:
            raise
        except (RuntimeError, MemoryError) as error:  # torch's own, out of memory included
            log.error("layer_failed", requests=len(requests), error=str(error))
            self._serving.publish(self._scheduler.fail(f"the engine failed: {error}"))
        else:
            self._counts.layers.inc(len(requests))
            for request in requests:
                request.reach(self.origin.manifest.config.num_hidden_layers)
            self._ran(run.layer, sum(request.rows for request in requests), self._clock.now() - began)
        self._forget()
        self._perform(self.queue.layer_done())

    def _ran(self, layer: int, rows: int, seconds: float) -> None:
        if self._first_layer is not None:
            self._first_layer()
            self._first_layer = None
        if self._planner is not None:
            self._planner.seen.ran(rows, seconds)
        log.debug("layer_ran", layer=layer, rows=rows, seconds=seconds)

    def _perform(self, effects: Iterable[QueueEffect]) -> RunLayer | None:
        """Do what the queue wants done, and return the layer that is to be run, which is left to the caller."""
        run, leaving = None, defaultdict[str, list[QueuedRequest]](list)
        for effect in effects:
            match effect:
                case RunLayer():
                    run = effect
                case GiveTask():
                    leaving[effect.source].append(self._requests.pop(effect.task))
                case Release():
                    self._answer(effect.source, Pulled(over=True))
                case FinishTask() | GiveBack():
                    pass  # what was computed stays where it is, and the caller of an abort deals with what is left
                case other:
                    assert_never(other)
        for source, requests in leaving.items():
            pull, _ = self._pulls[source]
            more = len(self.queue) > 0 or self._scheduler.waiting > 0
            self._answer(
                source,
                Pulled(
                    tasks=self._hand_offs.give(pull, requests, self.origin), more=more, ranks=self._group.leader.others
                ),
            )
        return run

    def _answer(self, source: str, pulled: Pulled) -> None:
        _, answered = self._pulls.pop(source, (None, None))
        if answered is not None and not answered.done():
            answered.set_result(pulled)

    def _returned(self, request: QueuedRequest) -> None:
        """Go on with a request here, with the layers done."""
        request.sequence.held = self.queue.phase is QueuePhase.LIVE
        if self.queue.phase in (QueuePhase.LIVE, QueuePhase.DRAINING):
            self._append(request)
        self._serving.wake()
