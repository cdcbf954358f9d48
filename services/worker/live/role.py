"""Live scaling in one worker: it takes requests for what it still loads, and others pull from it."""

import asyncio
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Protocol

import structlog

from livescale.services.worker.live.context import LiveContext
from livescale.services.worker.live.handoff_send import HandOffSender
from livescale.services.worker.live.planner import LayerPlanner, forecast
from livescale.services.worker.live.policy import BEST_EFFORT, ZIGZAG, batch_budget
from livescale.services.worker.live.queue import LiveQueue
from livescale.services.worker.live.target import POLL_SECONDS, LiveTarget
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.bus.contract import Context
from livescale.shared.messages.live import Pull, Pulled, Withdraw
from livescale.shared.messages.transfers import Load

log = structlog.get_logger()


def goes_live(command: Load) -> bool:
    """Whether the worker takes requests by itself as soon as it has the embedding, and runs them from layer 0 on. Only
    the leading one of several ranks does."""
    return command.rank == 0 and command.live not in ("off", "pipeline")


class PullAnswerer(Protocol):
    """A part of the worker that has requests for other workers."""

    async def pull(self, command: Pull) -> Pulled:
        """Return the requests that the worker which pulls may have. Raises Refusal 409 where it may have none."""


class LiveRole:
    """The worker as a target of one live load after the other.

    `target` is None unless this worker went live for what it holds. `shares` answers pulls while something is kept for
    the others of a pipeline that this worker led. `hand_offs` are the requests on their way to sources.
    """

    def __init__(self, context: LiveContext) -> None:
        self.target: LiveTarget | None = None
        self.shares: PullAnswerer | None = None
        self.hand_offs = HandOffSender(context)
        self._context = context
        self._ready: AbstractSet[int] = frozenset()  # blocks that the target knows of
        self._is_coming = False  # it loads, and will go live
        self._load_began = 0.0
        self._began = asyncio.Event()
        self._withdrawn: set[str] = set()  # their pulls that wait for this worker to go live are void
        self._running: set[asyncio.Task[None]] = set()

    @property
    def layers(self) -> int:
        """How many layers requests may run through: those before the first that is missing."""
        return 0 if self.target is None else self.target.queue.loaded

    @property
    def waiting(self) -> int:
        """How many requests sources may pull, or could but for the layer that is run of them."""
        return 0 if self.target is None else len(self.target.queue)

    @property
    def handed_over(self) -> dict[str, int]:
        """How many requests each source took over."""
        return {} if self.target is None else dict(self.target.origin.taken)

    def expect(self, command: Load) -> None:
        """A load begins. Pulls that come before the worker is live wait for that."""
        self._is_coming = goes_live(command)
        self._withdrawn.clear()
        self._load_began = self._context.worker.clock.now()

    def missed(self) -> None:
        """Note that all blocks came at once, so that the worker is whole and was never live."""
        self._is_coming = False

    def begin(self, command: Load, scheduler: Scheduler, ready: AbstractSet[int]) -> None:
        """Take requests: these blocks are ready, and the embedding is one of them."""
        budget = batch_budget(scheduler.limits, self._context.worker.runner.joined_rows)
        queue = LiveQueue(
            command.manifest.config.num_hidden_layers + 1,
            rule=BEST_EFFORT if command.live == "best-effort" else ZIGZAG,
            budget=budget,
        )
        planner = LayerPlanner(forecast(command, self._load_began), budget) if command.live == "zigzag-ilp" else None
        target = self.target = LiveTarget(
            command.manifest,
            scheduler,
            queue,
            planner,
            lambda: self._context.instance.tell("first_layer"),
            context=self._context,
            hand_offs=self.hand_offs,
        )
        self._ready = frozenset()
        self.blocks_ready(ready)
        tasks = self._context.worker.tasks
        self._running.add(tasks.create_task(target.run(), name=f"live {command.instance}"))
        if planner is not None:
            self._running.add(tasks.create_task(target.plan(planner), name=f"plan {command.instance}"))
        self._began.set()
        log.info("went_live", instance=command.instance, mode=command.live)

    def blocks_ready(self, ready: AbstractSet[int]) -> None:
        """More blocks are ready. A live worker has the embedding, which counts with the first layer."""
        if self.target is None:
            return
        new, self._ready = ready - self._ready, frozenset(ready)
        for index in sorted(new - {0}):
            self.target.layer_ready(index - 1)

    async def end(self, reason: str) -> None:
        """Give nothing any more: the requests here are no longer this worker's, or there are none."""
        target, self.target = self.target, None
        self._is_coming = False
        self._began.clear()
        running, self._running = self._running, set()
        if target is None:
            return
        for task in running:
            task.cancel()
        await target.stop(reason)
        await asyncio.wait(running)

    async def pull(self, command: Pull, context: Context) -> Pulled:
        """Answer PULL: a worker that helps this one has nothing to prefill."""
        if self.shares is not None:
            return await self.shares.pull(command)
        if self.target is None and self._is_coming:
            self._withdrawn.discard(command.worker)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._began.wait()
            if command.worker in self._withdrawn:
                return Pulled()
        if self.target is None:
            return Pulled(over=not self._is_coming)
        return await self.target.pull(command)

    def withdraw(self, message: Withdraw) -> None:
        """Withdraw the pull of a source that found other work."""
        if self.target is not None:
            self.target.withdraw(message.worker)
        elif self._is_coming:
            self._withdrawn.add(message.worker)

    def lost(self, worker: str) -> None:
        """The registry has declared this worker dead: its pull is void, and nothing is on its way to it."""
        if self.target is not None:
            self.target.withdraw(worker)
        self.hand_offs.lost(worker)
