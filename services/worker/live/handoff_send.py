"""Requests that a worker gives to sources: each stays the worker's until its source says that it took it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import structlog

from livescale.services.worker.engine.contract import LayerwiseRun
from livescale.services.worker.instance.context import ACTIVATION, KV, Channel, send
from livescale.services.worker.live.context import LiveContext
from livescale.services.worker.scheduling.batch import (
    MAX_BATCH_ROWS,
    LayerEntry,
    activation_bytes,
    kv_bytes,
    share_left,
)
from livescale.services.worker.scheduling.scheduler import Scheduler
from livescale.services.worker.scheduling.sequence import NOTHING, Filled, Sequence
from livescale.shared.bus.contract import Ack, Context, Refusal
from livescale.shared.links.contract import LinkError, Peer, View
from livescale.shared.messages.live import Pull, Task, Took
from livescale.shared.messages.parameters import Manifest

# From the activation's arrival; a source that says so later hears that it came too late.
TOOK_SECONDS = 5.0

log = structlog.get_logger()


@dataclass(eq=False)
class QueuedRequest:
    """A request in the queue of a worker that still loads, or kept for another worker.

    `partial` holds its rows once a layer of them is run. `filled` says which of its KV the worker that is to have the
    request has already.
    """

    sequence: Sequence
    partial: LayerwiseRun | None = None
    filled: Filled | None = None

    @property
    def request_id(self) -> str:
        return self.sequence.request_id

    @property
    def rows(self) -> int:
        return len(self.sequence.tokens)

    def begun(self) -> LayerwiseRun:
        """Return its rows, ready to run the next layer of them."""
        if self.partial is None:
            self.partial = LayerwiseRun(list(self.sequence.rest(MAX_BATCH_ROWS)))
        return self.partial

    def reach(self, layers: int) -> None:
        """Note that one more of the model's `layers` is done: from here a step, or a source, would go on."""
        partial = self.begun()
        left = share_left(partial.done, layers)
        self.sequence.entry = LayerEntry(partial.done, self.rows, partial.activation, left)


class NotTaken(Exception):
    """The source declined the request, or did not say in time that it took it."""


@dataclass(eq=False)
class HandOffOrigin:
    """The requests that are given away: those of `scheduler`, which run a model of this `manifest`.

    `returned` is called with a request that no source took, unless it has ended. `taken` counts, by source, those that
    were taken. Once the origin is `over`, sources take none of its requests any more.
    """

    manifest: Manifest
    scheduler: Scheduler
    returned: Callable[[QueuedRequest], None]
    taken: Counter[str] = field(default_factory=Counter)
    over: bool = False


class OutgoingHandOff:
    """One request on its way to a source.

    `kv` is the KV of the layers that the request has behind it, exported, or None where it has run none. `pull` is
    the source's. `settled` says how it ended: True once the request is the source's.
    """

    def __init__(
        self,
        request: QueuedRequest,
        origin: HandOffOrigin,
        kv: asyncio.Future[View] | None,
        channel: Channel,
        pull: Pull,
    ) -> None:
        self.request = request
        self.origin = origin
        self.entry = request.sequence.entry
        self.channel = channel
        self.ranks = pull.ranks
        self.settled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._kv = kv

    @property
    def sequence(self) -> Sequence:
        return self.request.sequence

    @property
    def is_open(self) -> bool:
        """Whether the source may still say that it took the request."""
        return not (self.settled.done() or self.origin.over)

    @property
    def is_unfinished(self) -> bool:
        """Whether the request still waits in the scheduler that it came from."""
        return self.origin.scheduler.get(self.sequence.request_id) is self.sequence

    @property
    def source(self) -> str:
        return self.channel.other.id

    def settle(self, taken: bool) -> None:
        """Say whether the source took the request. Only the first word counts."""
        if not self.settled.done():
            self.settled.set_result(taken)

    async def run(self) -> None:
        """Send everything. A failure before the source took the request gives it back (`settled`)."""
        try:
            if self.entry is None or self._kv is None:
                await self._answered()
                return
            async with self.channel.giving() as peer:
                await self._send(peer, self.entry, self._kv)
        except (LinkError, NotTaken, RuntimeError) as error:
            log.warning("hand_off_failed", to=self.source, taken=self.settled.done(), error=str(error))
        finally:
            self.settle(False)

    async def _send(self, peer: Peer, entry: LayerEntry, kv: asyncio.Future[View]) -> None:
        await send(peer, ACTIVATION, entry.activation)
        await self._answered()
        await send(peer, KV, await kv)

    async def _answered(self) -> None:
        await asyncio.wait((self.settled,), timeout=TOOK_SECONDS)
        if not (self.settled.done() and self.settled.result()):
            raise NotTaken("the receiver declined, or did not answer in time")


class HandOffSender:
    """All hand-offs from this worker to sources, by source and ticket."""

    def __init__(self, context: LiveContext) -> None:
        self._context = context.worker
        self._serving = context.serving
        self._group = context.group
        self._counts = context.counts
        self._hand_offs: dict[tuple[str, int], OutgoingHandOff] = {}
        self._sending: dict[asyncio.Task[None], OutgoingHandOff] = {}

    def give(self, pull: Pull, requests: Iterable[QueuedRequest], origin: HandOffOrigin) -> list[Task]:
        """Begin to send these, each with the next ticket of the pull. Returns what the source is told of each."""
        return [self._give(pull, pull.ticket + number, request, origin) for number, request in enumerate(requests)]

    async def acknowledge(self, command: Took, context: Context) -> Ack:
        """Answer TOOK: the request is the source's from now on, unless the source declines it.

        Raises Refusal 409 where the source is not to have it.
        """
        hand_off = self._hand_offs.get((command.worker, command.ticket))
        if hand_off is None or not hand_off.is_open or hand_off.sequence.request_id != command.request_id:
            raise Refusal(409, f"request {command.request_id} is not on its way to {command.worker}")
        problem = _problem(hand_off)
        hand_off.settle(problem is None and command.declined is None)
        if problem is not None:
            raise Refusal(409, f"request {command.request_id} {problem}")
        if command.declined is None:
            self._release(hand_off)
        else:
            log.warning("task_declined", request=command.request_id, by=command.worker, reason=command.declined)
        return Ack()

    def lost(self, source: str) -> None:
        """The source is dead, so that what was on its way to it stays here."""
        for hand_off in self._hand_offs.values():
            if hand_off.source == source:
                hand_off.settle(False)

    def stop(self, origin: HandOffOrigin) -> None:
        """Cancel what is under way of this origin."""
        origin.over = True
        for sending, hand_off in self._sending.items():
            if hand_off.origin is origin:
                sending.cancel()

    async def stopped(self, origin: HandOffOrigin) -> None:
        """Return once nothing of this origin is being sent, so that its KV may be freed."""
        sending = [task for task, hand_off in self._sending.items() if hand_off.origin is origin]
        if sending:
            await asyncio.wait(sending)

    def _release(self, hand_off: OutgoingHandOff) -> None:
        """Forget the request, which the source has now; KV of other ranks goes to the source's other ranks."""
        sequence, source = hand_off.sequence, hand_off.source
        hand_off.origin.taken[source] += 1
        layers = sequence.layers_done
        if hand_off.entry is not None:
            self._group.leader.give(sequence.blocks, layers, hand_off.channel, hand_off.ranks)
        self._serving.release(sequence.request_id, source, layers)

    def _give(self, pull: Pull, ticket: int, request: QueuedRequest, origin: HandOffOrigin) -> Task:
        sequence = request.sequence
        sequence.held, entry = True, sequence.entry
        kv = None if entry is None else self._context.runner.export_kv(sequence.blocks, entry.layer)
        channel = self._context.channel(pull.source, ticket, pull.secret)
        hand_off = OutgoingHandOff(request, origin, kv, channel, pull)
        self._hand_offs[pull.worker, ticket] = hand_off
        hand_off.settled.add_done_callback(partial(self._settled, hand_off))
        sending = self._context.start(hand_off.run(), f"hand-off {sequence.request_id}")
        if sending is not None:
            self._sending[sending] = hand_off
            sending.add_done_callback(self._sent)
        return self._task(request, origin)

    def _sent(self, sending: asyncio.Task[None]) -> None:
        hand_off = self._sending.pop(sending)
        key = hand_off.source, hand_off.channel.ticket
        if self._hand_offs.get(key) is hand_off:  # a source that was started again begins anew with its tickets
            del self._hand_offs[key]

    def _settled(self, hand_off: OutgoingHandOff, settled: asyncio.Future[bool]) -> None:
        if settled.result() or not hand_off.is_unfinished:
            return
        self._counts.returned.inc()
        hand_off.origin.returned(hand_off.request)

    def _task(self, given: QueuedRequest, origin: HandOffOrigin) -> Task:
        sequence, manifest = given.sequence, origin.manifest
        entry, submit = sequence.entry, self._context.leaving(sequence.as_request())
        waited = self._serving.waited(sequence.request_id)
        if entry is None:
            filled = given.filled or NOTHING
            return Task(request=submit, layers=0, waited=waited, filled=filled.stop, first_block=filled.first_block)
        return Task(
            request=submit,
            layers=entry.layer,
            activation_bytes=activation_bytes(manifest, entry.stop),
            kv_bytes=kv_bytes(manifest, entry.stop, entry.layer, origin.scheduler.limits.kv_block_tokens),
            waited=waited,
        )


def _problem(hand_off: OutgoingHandOff) -> str | None:
    """Why the request cannot become the source's any more."""
    if not hand_off.is_unfinished:
        return "has ended"
    if hand_off.ranks and hand_off.sequence.entry is not hand_off.entry:
        return "lost its KV, of which the other ranks have no copy"
    return None
