"""The worker that prefills: it sends the KV of its requests to the workers that decode them, while it computes it.

A request stays here until its decode worker has answered that it goes on with it. Until then its KV stays here, too:
where nothing comes of the transfer, the request is decoded here. So it is with requests that move later on, as when
this worker drains; these are decoded here until all of their KV was sent.
"""

import asyncio

import structlog
from msgspec.structs import replace

from livescale.services.worker.disaggregation.context import KvContext
from livescale.services.worker.disaggregation.outgoing import KvTransfer, KvTransferState, OutgoingKv
from livescale.services.worker.disaggregation.pieces import SLOW_LINK
from livescale.services.worker.disaggregation.sending import CALL_SECONDS, RETRY_SECONDS, KvSender
from livescale.services.worker.instance.lifecycle import WorkerState
from livescale.services.worker.scheduling.batch import Batch, KvExport, kv_bytes
from livescale.shared.bus.contract import Ack, BusError, Context, Refusal
from livescale.shared.messages.disaggregation import HandOver, ReleaseKv
from livescale.shared.runtime.waiting import Changes, end_tasks
from livescale.shared.subjects import RELEASE_KV

# Of pieces that have left the cache when a step begins. With fewer, all KV of the step leaves, in large models hundreds
# of MiB. With more it stays in the cache until these are sent.
MOST_STAGED_BYTES = 64 << 20
LATE_SECONDS = 5.0  # after the first token: then the request is decoded here

log = structlog.get_logger()


class PrefillSide:
    """All requests of this worker that are to be decoded elsewhere."""

    def __init__(self, context: KvContext, *, by_layer: bool) -> None:
        """`by_layer`: KV leaves as soon as a layer has computed it, and not after the last one."""
        self._context = context
        self._worker = context.worker
        self._serving = context.serving
        self._counts = context.counts
        self._by_layer = by_layer
        self._sender = KvSender(context, self._void)
        self._outgoing: dict[str, OutgoingKv] = {}  # by request
        # Each piece wakes its own request alone: many pieces leave in a step.
        self._changes: dict[OutgoingKv, Changes] = {}
        self._carrying: set[asyncio.Task[None]] = set()
        self._dead: set[str] = set()  # workers that were declared dead, and have not reserved anything since
        self._releasing: dict[asyncio.Task[None], str] = {}  # and the worker that is told
        context.worker.runner.on_kv = self._kv_left
        context.serving.with_exports = self.with_exports

    def __len__(self) -> int:
        return len(self._outgoing)

    @property
    def tokens_per_second(self) -> float | None:
        """At which rate KV leaves here while it is sent; None before that was measured."""
        return self._sender.rate.tokens_per_second

    @property
    def _link_pace(self) -> float:
        """How many layers of KV links carry while one is computed, as measured so far."""
        sent, computed = self.tokens_per_second, self._worker.runner.rates.prefill_tokens_per_second
        return sent / computed if sent and computed else SLOW_LINK

    def expect(self, request_id: str, decode: str) -> None:
        """Have a request that was just admitted decoded by another worker, where that is of any use."""
        self._forget()
        one = self._find(request_id, decode)
        serves = self._context.instance.lifecycle.state is WorkerState.SERVING and self._serving.runs_steps
        if one is None or one.scheduler.is_begun(one.sequence) or not serves:
            self._tell_kept(request_id)
            return
        self._outgoing[request_id] = one
        one.begin()

    async def hand_over(self, command: HandOver, context: Context) -> Ack:
        """Answer HAND_OVER, once another worker has the request. Raises Refusal: 409 where that is of no use or under
        way, 429 where the request stays here for now."""
        try:
            await self._hand_over(command.request_id, command.decode)
        except Refusal as refusal:
            self._note_kept(command.request_id, refusal.message)
            raise
        return Ack()

    async def _hand_over(self, request_id: str, decode: str) -> None:
        if self._context.has_ranks:
            raise Refusal(409, "each rank of the instance has a part of their KV")
        self._forget()
        one = self._find(request_id, decode, moves=True)
        if one is None:
            raise Refusal(409, "it is not here, moves already, or is about to end")
        if one.sequence.held or not self._serving.runs_steps:
            raise Refusal(429, "it is still run layer by layer, as the model was loaded")
        self._outgoing[request_id] = one
        one.begin()
        one.transfer.stay()
        carrying = self._start(one)
        if carrying is not None:
            await asyncio.wait([carrying])
        if one.transfer.state is not KvTransferState.TAKEN:
            raise Refusal(429, f"nothing came of the move to {decode}")

    def _note_kept(self, request_id: str, why: str) -> None:
        """Remember why a request stays here, for as long as it does, and is not on its way."""
        scheduler = self._serving.scheduler
        if scheduler is not None and scheduler.get(request_id) is not None and request_id not in self._outgoing:
            self._context.instance.kept[request_id] = why

    def _tell_kept(self, request_id: str) -> None:
        """Tell the router that a request is decoded here, although it named another worker: it may move later, and
        nothing is promised there."""
        self._serving.frames.tell_moved(request_id, self._worker.me)

    def _find(self, request_id: str, decode: str, *, moves: bool = False) -> OutgoingKv | None:
        """A request that is here, as one that goes to another worker; None where it cannot, or does already."""
        served, scheduler = self._context.served, self._serving.scheduler
        sequence = None if scheduler is None else scheduler.get(request_id)
        if served is None or scheduler is None or sequence is None or decode == self._worker.me:
            return None
        if sequence.request.max_tokens - sequence.generated <= 1 or request_id in self._outgoing:
            return None
        layers = served.manifest.config.num_hidden_layers
        layer_bytes = kv_bytes(served.manifest, 1, 1, block_tokens=1)
        positions = len(sequence.tokens) - sequence.has_sampled
        transfer = KvTransfer(positions, layers, layer_bytes, by_layer=self._by_layer)
        return OutgoingKv(decode, scheduler, sequence, transfer, served.manifest.version, moves)

    def with_exports(self, batch: Batch) -> Batch:
        """Have KV leave in a step that is about to begin. With a request's first step its transfer begins."""
        if not self._outgoing:
            return batch
        self._forget()
        spans: dict[str, tuple[int, int]] = {}
        for chunk in batch.chunks:
            if chunk.request_id in self._outgoing:
                start, _ = spans.get(chunk.request_id, (chunk.start, 0))
                spans[chunk.request_id] = start, chunk.stop
        staged_bytes = sum(one.transfer.staged_bytes for one in self._outgoing.values())
        leaves = staged_bytes < MOST_STAGED_BYTES
        exports = [self._export(self._outgoing[id], *span, leaves=leaves) for id, span in spans.items()]
        leaving = tuple(one for one in exports if one is not None)
        return replace(batch, exports=leaving) if leaving else batch

    def _export(self, one: OutgoingKv, start: int, stop: int, *, leaves: bool) -> KvExport | None:
        if not one.is_open(self._serving.scheduler):
            return None
        pieces = one.transfer.step(start, stop, self._link_pace, leaves=leaves)
        if one.transfer.state is KvTransferState.EXPECTED:
            self._start(one)
        stop = min(stop, one.transfer.positions)
        return KvExport(one.number, one.sequence.blocks, start, stop, pieces) if pieces else None

    def _start(self, one: OutgoingKv) -> asyncio.Task[None] | None:
        one.transfer.move(KvTransferState.ASKING)
        one.number, one.began = self._context.tickets.take(), self._worker.clock.now()
        changes = self._changes[one] = Changes()
        carrying = self._worker.start(self._carry(one, changes), f"KV to {one.decode} {one.request_id}")
        if carrying is not None:
            self._carrying.add(carrying)
            carrying.add_done_callback(self._carrying.discard)
        return carrying

    def _forget(self) -> None:
        """Forget requests that ended, or lost their place, before their first step."""
        for id, one in list(self._outgoing.items()):
            if one.transfer.state is KvTransferState.EXPECTED and not one.is_open(self._serving.scheduler):
                one.keep()
                del self._outgoing[id]
                self._tell_kept(id)

    def _kv_left(self, export: KvExport, layers: range, data: memoryview) -> None:
        """Take a piece of KV that a step has computed."""
        for one in self._outgoing.values():
            if one.number == export.ticket and one.take(export, layers, data):
                self._changes[one].tell()

    def lost(self, worker: str) -> None:
        """This worker is dead: what was on its way to it is decoded here, and nothing is kept there."""
        self._dead.add(worker)
        for one in self._outgoing.values():
            if one.decode == worker:
                one.is_lost = True
        for task, told in self._releasing.items():
            if told == worker:
                task.cancel()
        self._serving.changes.tell()

    async def end(self) -> None:
        """Send nothing any more, as nothing here is this worker's own any more, or nothing is left."""
        for task in self._carrying:
            task.cancel()
        if self._carrying:
            await asyncio.wait(self._carrying)
        self._outgoing.clear()
        self._changes.clear()

    async def _carry(self, one: OutgoingKv, changes: Changes) -> None:
        """Bring a request to its decode worker, or find that it stays here. Nothing of it goes out after this."""
        work = asyncio.ensure_future(self._sender.run(one, changes))
        watching = asyncio.ensure_future(self._watch(one, changes))
        try:
            await asyncio.wait((work, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                await end_tasks(work, watching)
            finally:
                self._settle(one, taken=not work.cancelled() and work.result())

    def _settle(self, one: OutgoingKv, *, taken: bool) -> None:
        self._outgoing.pop(one.request_id, None)
        self._changes.pop(one, None)
        if taken and not self._has_ended(one):
            self._let_go(one)
            return
        if one.is_late or one.is_lost:
            self._counts.failures.labels("late" if one.is_late else "lost").inc()
        one.transfer.move(KvTransferState.OVER if self._has_ended(one) else KvTransferState.KEPT)
        one.keep()
        self._serving.wake()
        log.info("kv_transfer_ended", request=one.request_id, to=one.decode, state=one.transfer.state)
        if one.transfer.state is KvTransferState.KEPT and not one.moves:
            self._tell_kept(one.request_id)
        self._void(one, "the prefill worker has nothing to hand over")

    def _has_ended(self, one: OutgoingKv) -> bool:
        return one.scheduler is not self._serving.scheduler or one.scheduler.get(one.request_id) is not one.sequence

    async def _watch(self, one: OutgoingKv, changes: Changes) -> None:
        """Tell of changes until the transfer is of no use: the request has ended or lost its KV, the decode worker is
        gone, or the request has waited for long, after its first token or while it moved."""
        try:
            async with asyncio.timeout(None) as late:
                while one.is_open(self._serving.scheduler):
                    if one.note_stopped(self._worker.clock.now()) and late.when() is None:
                        late.reschedule(asyncio.get_running_loop().time() + LATE_SECONDS)
                    changes.tell()
                    await self._serving.changes.wait()
        except TimeoutError:
            one.is_late = True

    def _let_go(self, one: OutgoingKv) -> None:
        """Forget the request, which is the decode worker's now."""
        one.transfer.move(KvTransferState.TAKEN)
        now, layers = self._worker.clock.now(), one.transfer.layers
        self._counts.taken.inc()
        self._counts.moved.inc(one.moves)
        self._context.instance.moved_requests += one.moves
        self._context.instance.kept.pop(one.request_id, None)
        self._counts.seconds.labels("whole").observe(now - one.began)
        self._counts.seconds.labels("exposed").observe(now - (one.stopped or now))
        log.info("request_given", request=one.request_id, to=one.decode, size_bytes=one.sent_bytes)
        self._serving.release(one.request_id, one.decode, layers)

    def _void(self, one: OutgoingKv, reason: str) -> None:
        """Have the decode worker keep nothing for the request any more, whether or not it does."""
        if one.is_reserved and not one.is_lost:
            self._dead.discard(one.decode)
        if one.asked is not None and not one.is_lost and one.decode not in self._dead:
            void = ReleaseKv(
                prefill=self._worker.me,
                ticket=one.asked.ticket,
                request_id=one.request_id,
                reason=reason,
                ended=self._has_ended(one),
            )
            one.asked = None
            releasing = self._worker.start(self._release(one, void), f"KV release {one.request_id}")
            if releasing is not None:
                self._releasing[releasing] = one.decode
                releasing.add_done_callback(self._releasing.pop)

    async def _release(self, one: OutgoingKv, void: ReleaseKv) -> None:
        while True:
            try:
                await self._worker.bus.call(RELEASE_KV, void, timeout=CALL_SECONDS, id=one.decode)
            except Refusal:
                # It was taken, though no answer came: both make the same tokens, and this one stops.
                if not self._has_ended(one):
                    self._let_go(one)
                return
            except BusError:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return
