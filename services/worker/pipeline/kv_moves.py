"""KV between the workers of a pipeline: the KV of a request comes to its future worker from all that ran other
layers."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TypeVar

import structlog

from livescale.services.worker.instance.context import send
from livescale.services.worker.pipeline.context import StageContext, close, reach
from livescale.services.worker.pipeline.filling import Filling, KvWay, choose_way
from livescale.services.worker.pipeline.wire import kv_slices, kv_spans, layers_of
from livescale.services.worker.scheduling.batch import ScheduledChunk, kv_bytes, slice_bytes
from livescale.shared.bus.contract import Bus, BusError, Refusal
from livescale.shared.links.contract import LinkError, Peer
from livescale.shared.messages.model_parallel import MoveKv, Pipeline
from livescale.shared.runtime.waiting import together
from livescale.shared.subjects import GIVE_KV, MOVE_KV

MOVE_SECONDS = 2.5  # longer than a worker tries
REST_SECONDS = 0.25

log = structlog.get_logger()


class KvMover:
    """The leader's part: it has KV moved to the workers that will own the requests, one part at a time for each.
    `next_part` says what a worker gets next. `moved` is called when one more part is there, or does not come."""

    def __init__(
        self,
        pipeline: str,
        filling: Filling,
        next_part: Callable[[str], list[ScheduledChunk]],
        bus: Bus,
        moved: Callable[[], None],
    ) -> None:
        self._pipeline = pipeline
        self._filling = filling
        self._next_part = next_part
        self._bus = bus
        self._moved = moved
        self._moves: dict[str, asyncio.Task[None]] = {}  # by worker
        self._number = 0

    def begin(self) -> None:
        """Begin another part for each worker that lacks something and waits for none."""
        for worker in sorted(self._filling.movers - self._moves.keys()):
            pieces = self._next_part(worker)
            if pieces:
                self._number += 1
                self._moves[worker] = asyncio.create_task(self._move(worker, self._number, pieces))

    async def rest(self) -> None:
        """Have what is left moved, as far as that is quickly done, once the pipeline has stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                self.begin()
                while self._moves:
                    await asyncio.wait(self._moves.values(), return_when=asyncio.FIRST_COMPLETED)
                    self.begin()

    async def close(self) -> None:
        """Wait for nothing any more. What is under way may come until its worker leaves the pipeline."""
        for part in self._moves.values():
            part.cancel()
        if self._moves:
            await asyncio.wait(self._moves.values())

    async def _move(self, worker: str, number: int, pieces: Sequence[ScheduledChunk]) -> None:
        order = MoveKv(pipeline=self._pipeline, number=number, worker=worker, spans=kv_spans(pieces))
        try:
            await self._bus.call(MOVE_KV, order, timeout=MOVE_SECONDS, id=worker)
        except BusError as error:
            # Only a worker that says so is done with it: into another's blocks nothing may come late.
            computes = isinstance(error, Refusal) and error.code == 409
            log.info("kv_not_moved", pipeline=self._pipeline, worker=worker, computes=computes, reason=str(error))
            self._filling.not_moved(worker, computes=computes)
        else:
            self._filling.moved(worker)
        finally:
            del self._moves[worker]
        self._moved()


COME_SECONDS = 2.0  # for one part from all of them
GIVE_SECONDS = 1.0
T = TypeVar("T")


class KvMoves:
    """One worker's part: it sends KV to the workers that ask for it, and receives KV from them.

    Between any two workers there is a channel each way, opened with the first part. A part may belong to requests that
    have ended; then it is not used, as the parts for a worker come one after the other. None comes after the worker was
    told to compute.
    """

    def __init__(self, command: Pipeline, context: StageContext) -> None:
        self.way: KvWay | None = None  # as it was last decided
        self._command = command
        self._context = context
        self._me, self._runner = context.worker.me, context.worker.runner
        self._bus, self._link = context.worker.bus, context.worker.link
        self._addresses = {stage.node.id: stage.node.address for stage in command.stages}
        self._others = {one: layers for one in self._addresses if one != self._me and (layers := self._layers(one))}
        self._peers: dict[tuple[str, str], Peer] = {}  # by sender and receiver
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Allow moves until cancelled. Then nothing comes or goes any more."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None
            for pair in list(self._peers):
                await self._hang_up(*pair)

    async def take(self, order: MoveKv) -> None:
        """Receive this KV from all workers that have it. Raises Refusal 409 where it does not come, or is computed
        faster.
        """
        self._check(order)
        way = self._decide()
        if not way.moves:
            raise Refusal(409, way.reason)
        coming = self._start(self._come(order))
        await asyncio.wait((coming,))
        failed = "the pipeline is over" if coming.cancelled() else coming.result()
        if failed is not None:
            raise Refusal(409, failed)

    def give(self, order: MoveKv) -> None:
        """Begin to send this KV. Raises Refusal for what is not here."""
        self._check(order)
        self._start(self._send(order))

    def _start(self, work: Coroutine[None, None, T]) -> asyncio.Task[T]:
        try:
            if self._tasks is not None:
                return self._tasks.create_task(work)
        except RuntimeError:  # it is ending
            pass
        work.close()
        raise Refusal(409, f"{self._command.id} does not run here")

    def _check(self, order: MoveKv) -> None:
        if order.worker not in self._addresses:
            raise Refusal(400, f"worker: {order.worker} is none of {self._command.id}")
        try:
            kv_slices(order, [], self._context.limits)
        except ValueError as error:
            raise Refusal(400, str(error)) from None

    def _layers(self, worker: str) -> list[range]:
        return layers_of(self._command, worker)

    def _decide(self) -> KvWay:
        way = self._way()
        if self.way is None or self.way.moves != way.moves:
            self.way = way
            log.info("kv_way", pipeline=self._command.id, moves=way.moves, reason=way.reason)
            self._context.changed()
        return way

    def _way(self) -> KvWay:
        context = self._context
        if context.manifest.shards > 1:
            return KvWay(False, "the ranks of an instance compute it together")
        others = sum(len(stretch) for layers in self._others.values() for stretch in layers)
        token_bytes = kv_bytes(context.manifest, 1, others, block_tokens=1)
        rates = context.link_rate.per_second, self._runner.rates.part_tokens_per_second
        return choose_way(context.switch_kv, token_bytes, *rates)

    async def _come(self, order: MoveKv) -> str | None:
        """Receive the KV, and return why it did not come, if so."""
        context, came = self._context, dict[str, memoryview]()
        try:
            async with asyncio.timeout(COME_SECONDS):
                await together(*(self._fetch(order, source, came) for source in self._others))
            for source, data in came.items():
                slices = kv_slices(order, self._others[source], context.limits)
                await self._runner.import_slices(slices, data)
        except (BusError, LinkError, TimeoutError, ValueError, RuntimeError) as error:
            context.counts.kv_lost.inc()
            for source in self._others:
                await self._hang_up(source, self._me)
            return str(error) or f"it did not come within {COME_SECONDS:g} s"
        context.counts.moved.inc(sum(one.stop - one.start for one in order.spans))
        return None

    async def _fetch(self, order: MoveKv, source: str, came: dict[str, memoryview]) -> None:
        context = self._context
        slices = kv_slices(order, self._others[source], context.limits)
        size_bytes = sum(slice_bytes(context.manifest, one) for one in slices)
        await self._bus.call(GIVE_KV, order, timeout=GIVE_SECONDS, id=source)
        came[source] = await context.receive(await self._reach(source, self._me), order.number, size_bytes)

    async def _send(self, order: MoveKv) -> None:
        context = self._context
        try:
            slices = kv_slices(order, self._layers(self._me), context.limits)
            data = await self._runner.export_slices(slices)
            await send(await self._reach(self._me, order.worker), order.number, data)
        except (LinkError, RuntimeError) as error:
            log.warning("kv_not_sent", pipeline=order.pipeline, to=order.worker, error=str(error))
            await self._hang_up(self._me, order.worker)

    async def _reach(self, source: str, worker: str) -> Peer:
        pair = source, worker
        if pair not in self._peers:
            other = worker if source == self._me else source
            peer = await reach(self._link, self._command, self._addresses[other], f"{source} to {worker}")
            self._peers[pair] = peer
        return self._peers[pair]

    async def _hang_up(self, source: str, worker: str) -> None:
        """Close a channel, so that the worker at its other end waits no longer."""
        peer = self._peers.pop((source, worker), None)
        if peer is not None:
            await close(peer)
