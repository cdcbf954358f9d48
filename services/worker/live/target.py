"""A worker that takes requests while its parameters still arrive (BlitzScale 5.2): it runs the layers that it has, and
whoever helps pulls requests away with the layers done."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

import structlog

from services.worker.batch import MAX_BATCH_ROWS, Entry
from services.worker.engine.partial import Partial
from services.worker.engine.sizes import activation_bytes, kv_bytes
from services.worker.live.giving import Giving
from services.worker.live.handoff import Channel
from services.worker.live.optimum import Optimum, Waiting
from services.worker.live.parts import Parts
from services.worker.scheduler import Scheduler
from services.worker.sequence import Sequence
from services.worker.zigzag.effects import Finish, GiveBack, HandOver, Park, QueueEffect, Release, Run
from services.worker.zigzag.queue import LiveQueue, Phase
from services.worker.zigzag.tasks import Task as Queued
from shared.bus.contract import Refusal
from shared.deadlines import leaving
from shared.messages.live import Pull, Pulled, RequestsMoved, Task, Took
from shared.messages.transfers import Load, Node
from shared.subjects import MOVED

POLL_SECONDS = 0.5  # how long a pull is held while there is nothing to give

log = structlog.get_logger()


@dataclass
class Request:
    """A request in the queue, and its activation once a layer was run."""

    sequence: Sequence
    partial: Partial[Any] | None = None


class LiveTarget:
    """One load. While blocks are missing every request is in the queue, and none is the scheduler's to run. After the
    last block all are, from the layer at which they stand, and those that no step has begun may still be pulled."""

    def __init__(self, parts: Parts, command: Load, scheduler: Scheduler, queue: LiveQueue, optimum: Optimum) -> None:
        self.command = command
        self.queue = queue
        self._optimum = optimum
        self._parts = parts
        self._serving, self._clock = parts.serving, parts.world.clock
        self._scheduler = scheduler
        self._requests: dict[str, Request] = {}
        self._pulls: dict[str, tuple[Pull, asyncio.Future[Pulled]]] = {}
        self._givings: dict[tuple[str, int], Giving] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run layers until all blocks are here."""
        while self.queue.phase is Phase.LIVE:
            self._serving.publish(self._scheduler.expire(self._clock.wall()))
            self._forget()
            self._take_in()
            run = self._perform(self.queue.next())
            if run is None:
                await self._wait()
            else:
                await self._run_layer(self._requests[run.task])
        for request in self._requests.values():
            request.sequence.held = False
        self._serving.begin_steps()

    async def plan(self) -> None:
        """In the mode zigzag-ilp, beside `run`: have as many layers run of each request as is best."""
        while self.queue.phase is Phase.LIVE:
            waiting = [Waiting(task.id, self._rows(task.id)) for task in self.queue.unbegun]
            rule = await self._optimum.plan(waiting, self._clock.now())
            if rule is None:
                await self._serving.changes.wait()
            else:
                self._perform(self.queue.go_by(rule))
                self._serving.changes.tell()

    def _rows(self, id: str) -> int:
        return len(self._requests[id].sequence.tokens)

    def layer_ready(self, layer: int) -> None:
        """The block that it needs is laid out; the head counts as one more layer."""
        self._forget()
        self._perform(self.queue.block_ready(layer))
        self._optimum.seen.arrived(self.queue.loaded, self._clock.now())
        self._serving.changes.tell()

    async def pull(self, command: Pull) -> Pulled:
        """The earliest request that may leave; after a while none. Raises Refusal 409 where KV would not fit."""
        block_tokens = self._scheduler.limits.kv_block_tokens
        if (command.version, command.block_tokens) != (self.command.manifest.version, block_tokens):
            raise Refusal(409, f"KV here has blocks of {block_tokens} tokens, of {self.command.manifest.version}")
        self._forget()
        self.withdraw(command.worker)
        answered: asyncio.Future[Pulled] = asyncio.get_running_loop().create_future()
        self._pulls[command.worker] = command, answered
        try:
            self._perform(self.queue.pull(command.worker))
            await asyncio.wait((answered,), timeout=POLL_SECONDS)
        finally:
            if not answered.done():
                self.withdraw(command.worker)
        return answered.result()

    def withdraw(self, source: str) -> None:
        """Its pull is void, if it has one here."""
        self.queue.withdraw(source)
        self._answer(source, Pulled())

    def took(self, command: Took) -> None:
        """The request is the source's from now on. Raises Refusal 409 where it is not to have it."""
        giving = self._givings.get((command.worker, command.ticket))
        if giving is None or giving.settled.done() or giving.sequence.request_id != command.request_id:
            raise Refusal(409, f"request {command.request_id} is not on its way to {command.worker}")
        is_here = self._scheduler.get(command.request_id) is giving.sequence
        giving.settle(is_here and command.declined is None)
        if not is_here:
            raise Refusal(409, f"request {command.request_id} has ended")
        if command.declined is None:
            self._serving.release(command.request_id)
            moved = RequestsMoved(worker=command.worker, previous=self._parts.me, request_ids=[command.request_id])
            self._parts.world.bus.publish(MOVED, moved, previous=self._parts.me)
        else:
            log.warning("task_declined", request=command.request_id, by=command.worker, reason=command.declined)

    def lost(self, source: str) -> None:
        """The source is dead: what was on its way to it is here."""
        self.withdraw(source)
        for giving in self._givings.values():
            if giving.source == source:
                giving.settle(False)

    def stop(self, reason: str) -> None:
        """Give nothing any more, and end what is under way."""
        self._perform(self.queue.abort(reason))
        for task in self._sending:
            task.cancel()

    async def stopped(self) -> None:
        """After `stop`: nothing is read any more of what is here."""
        if self._sending:
            await asyncio.wait(self._sending)

    async def _wait(self) -> None:
        """For whatever changes, or the first deadline."""
        deadline = self._scheduler.next_deadline()
        seconds = None if deadline is None else max(0.0, deadline - self._clock.wall())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._serving.changes.wait()

    def _take_in(self) -> None:
        """Whoever has KV blocks now waits in the queue."""
        for sequence in self._scheduler.start():
            sequence.held = True
            self._append(Request(sequence))

    def _append(self, request: Request) -> None:
        sequence = request.sequence
        self._requests[sequence.request_id] = request
        queued = Queued(sequence.request_id, sequence.arrival, priority=sequence.request.priority)
        self._perform(self.queue.append(queued, sequence.layers_done))

    def _forget(self) -> None:
        """What ended here is no longer in the queue; nor what a step has begun."""
        for id, request in list(self._requests.items()):
            if self._scheduler.get(id) is not request.sequence or self._scheduler.is_begun(request.sequence):
                del self._requests[id]
                self._perform(self.queue.remove(id))

    async def _run_layer(self, request: Request) -> None:
        sequence, runner, began = request.sequence, self._parts.runner, self._clock.now()
        try:
            if request.partial is None:
                request.partial = await runner.begin(tuple(sequence.slabs(MAX_BATCH_ROWS)))
            await runner.run_layer(request.partial)
        except (RuntimeError, MemoryError) as error:  # torch's own, out of memory included
            log.error("layer_failed", request=sequence.request_id, error=str(error))
            self._serving.publish(self._scheduler.fail(f"the engine failed: {error}"))
        else:
            self._parts.counts.layers.inc()
            seconds = self._clock.now() - began
            self._optimum.seen.ran(len(sequence.tokens), seconds)
            log.debug("layer_ran", layer=request.partial.done - 1, rows=len(sequence.tokens), seconds=seconds)
            sequence.entry = Entry(request.partial.done, len(sequence.tokens), request.partial.activation)
        self._forget()
        self._perform(self.queue.layer_done(sequence.request_id))

    def _perform(self, effects: Iterable[QueueEffect]) -> Run | None:
        """Do what the queue wants done; what is to be run is left to the caller."""
        run = None
        for effect in effects:
            match effect:
                case Run():
                    run = effect
                case HandOver():
                    self._give(effect)
                case Release():
                    self._answer(effect.source, Pulled(over=True))
                case Park() | Finish() | GiveBack():
                    pass  # what was computed stays where it is; whoever aborts tells of what is left
                case other:
                    assert_never(other)
        return run

    def _answer(self, source: str, pulled: Pulled) -> None:
        _, answered = self._pulls.pop(source, (None, None))
        if answered is not None and not answered.done():
            answered.set_result(pulled)

    def _give(self, effect: HandOver) -> None:
        pull, _ = self._pulls[effect.source]
        request = self._requests.pop(effect.task)
        sequence = request.sequence
        sequence.held, entry = True, sequence.entry
        kv = None if entry is None else self._parts.runner.export_kv(sequence.blocks, entry.layer)
        node = Node(id=pull.worker, place="worker", address=pull.address)
        giving = Giving(sequence, entry, kv, Channel(self._parts.link, node, pull.ticket, pull.secret))
        self._givings[pull.worker, pull.ticket] = giving
        giving.settled.add_done_callback(partial(self._settled, request))
        sending = self._parts.start(giving.run(), f"hand-off {sequence.request_id}")
        if sending is not None:
            self._sending.add(sending)
            sending.add_done_callback(partial(self._sent, pull))
        self._answer(effect.source, Pulled(task=self._task(sequence, entry)))

    def _sent(self, pull: Pull, sending: asyncio.Task[None]) -> None:
        self._sending.discard(sending)
        del self._givings[pull.worker, pull.ticket]

    def _settled(self, request: Request, settled: asyncio.Future[bool]) -> None:
        """Unless it was taken, or ended meanwhile, it goes on here with the layers done."""
        sequence = request.sequence
        if settled.result() or self._scheduler.get(sequence.request_id) is not sequence:
            return
        self._parts.counts.returned.inc()
        sequence.held = self.queue.phase is Phase.LIVE
        if self.queue.phase in (Phase.LIVE, Phase.DRAINING):
            self._append(request)
        self._serving.wake()

    def _task(self, sequence: Sequence, entry: Entry | None) -> Task:
        request, manifest = leaving(sequence.request, self._clock.wall()), self.command.manifest
        waited = self._serving.waited(sequence.request_id)
        if entry is None:
            return Task(request=request, layers=0, waited=waited)
        return Task(
            request=request,
            layers=entry.layer,
            activation_bytes=activation_bytes(manifest, entry.stop),
            kv_bytes=kv_bytes(manifest, entry.stop, entry.layer, self._scheduler.limits.kv_block_tokens),
            waited=waited,
        )
