"""Live scaling in one worker: it may be the target of what it loads, and helps others once it serves."""

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress

import structlog

from livescale.services.worker.live.parts import Parts
from livescale.services.worker.live.planner import LayerPlanner, forecast
from livescale.services.worker.live.policy import BEST_EFFORT, ZIGZAG
from livescale.services.worker.live.queue import LiveQueue
from livescale.services.worker.live.source import LiveSource
from livescale.services.worker.live.target import POLL_SECONDS, LiveTarget
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.live import Pull, Pulled, Took
from livescale.shared.messages.transfers import Load

log = structlog.get_logger()


def goes_live(command: Load) -> bool:
    """By itself, with its embedding: it takes requests, and runs them from its first layer on. Of several ranks the one
    that leads."""
    return command.rank == 0 and command.live not in ("off", "pipeline")


class LiveRole:
    """`target` is None unless this worker went live for what it holds."""

    def __init__(self, parts: Parts, first_layer: Callable[[], None]) -> None:
        """`first_layer` is called when the first layer of a load was run."""
        self.source = LiveSource(parts)
        self.target: LiveTarget | None = None
        self._parts = parts
        self._first_layer = first_layer
        self._ready: AbstractSet[int] = frozenset()  # blocks that the target knows of
        self._is_coming = False  # it loads, and will go live
        self._load_began = 0.0
        self._began = asyncio.Event()
        self._withdrawn: set[str] = set()  # whose pulls that wait for it to go live are void
        self._running: set[asyncio.Task[None]] = set()

    @property
    def layers(self) -> int:
        """That requests may run through: those before the first that is missing."""
        return 0 if self.target is None else self.target.queue.loaded

    @property
    def waiting(self) -> int:
        """Requests that sources may pull, or could but for the one that is run."""
        return 0 if self.target is None else len(self.target.queue)

    @property
    def handed_over(self) -> dict[str, int]:
        """How many requests each of those that helped took over."""
        return {} if self.target is None else dict(self.target.given.taken)

    def expect(self, command: Load) -> None:
        """Whoever pulls before it is live need not go away."""
        self._is_coming = goes_live(command)
        self._withdrawn.clear()
        self._load_began = self._parts.world.clock.now()

    def missed(self) -> None:
        """All of it came at once: it is whole, and was never live."""
        self._is_coming = False

    def begin(self, command: Load, scheduler: Scheduler, ready: AbstractSet[int]) -> None:
        """These blocks are ready, the embedding among them: take requests."""
        room = self._parts.room(scheduler.limits)
        queue = LiveQueue(
            command.manifest.config.num_hidden_layers + 1,
            rule=BEST_EFFORT if command.live == "best-effort" else ZIGZAG,
            room=room,
        )
        planner = LayerPlanner(forecast(command, self._load_began), room) if command.live == "zigzag-ilp" else None
        target = self.target = LiveTarget(self._parts, command, scheduler, queue, self._first_layer, planner)
        self._ready = frozenset()
        self.blocks_ready(ready)
        tasks = self._parts.tasks
        self._running.add(tasks.create_task(target.run(), name=f"live {command.instance}"))
        if planner is not None:
            self._running.add(tasks.create_task(target.plan(planner), name=f"plan {command.instance}"))
        self._began.set()
        log.info("went_live", instance=command.instance, mode=command.live)

    def blocks_ready(self, ready: AbstractSet[int]) -> None:
        """There are some more. Whoever is live has the embedding, which goes with the first layer."""
        if self.target is None:
            return
        new, self._ready = ready - self._ready, frozenset(ready)
        for index in sorted(new - {0}):
            self.target.layer_ready(index - 1)

    async def end(self, reason: str) -> None:
        """Nothing that is here is this worker's own any more, or there is nothing."""
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

    async def pull(self, command: Pull) -> Pulled:
        """A source has nothing to prefill."""
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

    def took(self, command: Took) -> None:
        """A source has what it was given, or does not want it."""
        if self.target is None:
            raise Refusal(409, f"request {command.request_id} is not on its way from here")
        self.target.given.took(command)

    def withdraw(self, source: str) -> None:
        """The source found something else to do."""
        if self.target is not None:
            self.target.withdraw(source)
        elif self._is_coming:
            self._withdrawn.add(source)

    def lost(self, worker: str) -> None:
        """The registry has declared it dead."""
        self.source.lost(worker)
        if self.target is not None:
            self.target.lost(worker)
