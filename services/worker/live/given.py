"""The requests that a worker gives to sources, as long as they are on their way."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import structlog
from msgspec.structs import replace

from livescale.services.worker.engine.sizes import activation_bytes, kv_bytes
from livescale.services.worker.live.giving import Giving
from livescale.services.worker.live.handoff import Channel
from livescale.services.worker.live.parts import Parts
from livescale.services.worker.live.request import Request
from livescale.services.worker.scheduler import Scheduler
from livescale.services.worker.sequence import NOTHING
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.live import Pull, RequestsMoved, Task, Took
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.requests import leaving
from livescale.shared.messages.transfers import Node
from livescale.shared.subjects import MOVED

log = structlog.get_logger()


class Given:
    """Hand-offs by source and ticket. `returned` is called with a request that nobody took, unless it has ended.
    `taken`: how many each source took."""

    def __init__(
        self, parts: Parts, manifest: Manifest, scheduler: Scheduler, returned: Callable[[Request], None]
    ) -> None:
        self._parts = parts
        self._manifest = manifest
        self._scheduler = scheduler
        self._returned = returned
        self.taken: Counter[str] = Counter()
        self._givings: dict[tuple[str, int], Giving] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def give(self, pull: Pull, requests: Sequence[Request]) -> list[Task]:
        """Send these, each with the next ticket of the pull; what its source is told of them."""
        return [self._give(pull, pull.ticket + number, request) for number, request in enumerate(requests)]

    def took(self, command: Took) -> None:
        """The request is the source's from now on. Raises Refusal 409 where it is not to have it."""
        giving = self._givings.get((command.worker, command.ticket))
        if giving is None or giving.settled.done() or giving.sequence.request_id != command.request_id:
            raise Refusal(409, f"request {command.request_id} is not on its way to {command.worker}")
        problem = self._problem(giving)
        giving.settle(problem is None and command.declined is None)
        if problem is not None:
            raise Refusal(409, f"request {command.request_id} {problem}")
        if command.declined is None:
            self.taken[command.worker] += 1
            layers = giving.sequence.layers_done
            if giving.entry is not None:
                self._parts.ranks.leader.give(giving.sequence.blocks, layers, giving.channel, giving.ranks)
            self._parts.serving.release(command.request_id)
            self._tell_moved(command.worker, command.request_id, layers)
        else:
            log.warning("task_declined", request=command.request_id, by=command.worker, reason=command.declined)

    def _problem(self, giving: Giving) -> str | None:
        """Why it cannot be the source's any more."""
        if self._scheduler.get(giving.sequence.request_id) is not giving.sequence:
            return "has ended"
        if giving.ranks and giving.sequence.entry is not giving.entry:
            return "lost its KV, of which the other ranks have no copy"
        return None

    def _tell_moved(self, source: str, request_id: str, layers: int) -> None:
        me, bus = self._parts.me, self._parts.world.bus
        moved = RequestsMoved(worker=source, previous=me, request_ids=[request_id], layers=layers)
        bus.publish(MOVED, moved, previous=me)

    def lost(self, source: str) -> None:
        """The source is dead: what was on its way to it is here."""
        for giving in self._givings.values():
            if giving.source == source:
                giving.settle(False)

    def stop(self) -> None:
        """End what is under way."""
        for task in self._sending:
            task.cancel()

    async def stopped(self) -> None:
        """After `stop`: nothing is read any more of what is here."""
        if self._sending:
            await asyncio.wait(self._sending)

    def _give(self, pull: Pull, ticket: int, request: Request) -> Task:
        sequence = request.sequence
        sequence.held, entry = True, sequence.entry
        kv = None if entry is None else self._parts.runner.export_kv(sequence.blocks, entry.layer)
        node = Node(id=pull.worker, place="worker", address=pull.address)
        giving = Giving(sequence, entry, kv, Channel(self._parts.link, node, ticket, pull.secret), pull.ranks)
        self._givings[pull.worker, ticket] = giving
        giving.settled.add_done_callback(partial(self._settled, request))
        sending = self._parts.start(giving.run(), f"hand-off {sequence.request_id}")
        if sending is not None:
            self._sending.add(sending)
            sending.add_done_callback(partial(self._sent, giving))
        return self._told(request)

    def _sent(self, giving: Giving, sending: asyncio.Task[None]) -> None:
        self._sending.discard(sending)
        key = giving.source, giving.channel.ticket
        if self._givings.get(key) is giving:  # a source that was started again begins anew with its tickets
            del self._givings[key]

    def _settled(self, request: Request, settled: asyncio.Future[bool]) -> None:
        if settled.result() or self._scheduler.get(request.sequence.request_id) is not request.sequence:
            return
        self._parts.counts.returned.inc()
        self._returned(request)

    def _told(self, given: Request) -> Task:
        sequence, manifest = given.sequence, self._manifest
        request = replace(sequence.request, generated=sequence.tokens[sequence.prompt_tokens :])
        entry, submit = sequence.entry, leaving(request, self._parts.world.clock.wall())
        waited = self._parts.serving.waited(sequence.request_id)
        if entry is None:
            filled = given.filled or NOTHING
            return Task(request=submit, layers=0, waited=waited, filled=filled.stop, first_block=filled.first_block)
        return Task(
            request=submit,
            layers=entry.layer,
            activation_bytes=activation_bytes(manifest, entry.stop),
            kv_bytes=kv_bytes(manifest, entry.stop, entry.layer, self._scheduler.limits.kv_block_tokens),
            waited=waited,
        )
