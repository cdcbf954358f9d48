"""Requests on their way from this worker to those that pulled them."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from services.worker.batch import Entry
from services.worker.live.giving import Giving
from services.worker.live.handoff import Channel
from services.worker.live.parts import Parts
from services.worker.scheduler import Scheduler
from services.worker.sequence import Sequence
from shared.bus.contract import Refusal
from shared.messages.live import Pull, RequestsMoved, Took
from shared.messages.transfers import Node
from shared.subjects import MOVED

log = structlog.get_logger()


class Givings:
    """Of requests that are here, in `scheduler`, until whoever pulled them says that it took them."""

    def __init__(self, parts: Parts, scheduler: Scheduler) -> None:
        self._parts = parts
        self._scheduler = scheduler
        self._givings: dict[tuple[str, int], Giving] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def give(
        self,
        pull: Pull,
        sequence: Sequence,
        on_kept: Callable[[], None],
        entry: Entry | None = None,
        kv: asyncio.Future[memoryview] | None = None,
    ) -> None:
        """Nobody else has to do with it meanwhile. `on_kept` is called if it was not taken, and did not end."""
        sequence.held = True
        node = Node(id=pull.worker, place="worker", address=pull.address)
        giving = Giving(sequence, entry, kv, Channel(self._parts.link, node, pull.ticket, pull.secret))
        self._givings[pull.worker, pull.ticket] = giving
        giving.settled.add_done_callback(partial(self._settled, sequence, on_kept))
        sending = self._parts.start(giving.run(), f"hand-off {sequence.request_id}")
        if sending is not None:
            self._sending.add(sending)
            sending.add_done_callback(partial(self._sent, pull))

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
            self._parts.serving.release(command.request_id)
            moved = RequestsMoved(worker=command.worker, previous=self._parts.me, request_ids=[command.request_id])
            self._parts.world.bus.publish(MOVED, moved, previous=self._parts.me)
        else:
            log.warning("task_declined", request=command.request_id, by=command.worker, reason=command.declined)

    def lost(self, source: str) -> None:
        """It is dead: what was on its way to it is here."""
        for giving in self._givings.values():
            if giving.source == source:
                giving.settle(False)

    def stop(self) -> None:
        """End what is under way."""
        for task in self._sending:
            task.cancel()

    async def ended(self) -> None:
        """Nothing is under way any more."""
        while self._sending:
            await asyncio.wait(self._sending)

    def _sent(self, pull: Pull, sending: asyncio.Task[None]) -> None:
        self._sending.discard(sending)
        del self._givings[pull.worker, pull.ticket]

    def _settled(self, sequence: Sequence, on_kept: Callable[[], None], settled: asyncio.Future[bool]) -> None:
        if not settled.result() and self._scheduler.get(sequence.request_id) is sequence:
            on_kept()
