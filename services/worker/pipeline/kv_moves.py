"""KV between the workers of a pipeline: what is to be one worker's comes there from all who ran other layers of it."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import structlog

from livescale.services.worker.engine.sizes import kv_bytes, slice_bytes
from livescale.services.worker.live.handoff import receive, send
from livescale.services.worker.pipeline.channels import close, reach
from livescale.services.worker.pipeline.costs import Way, choose_way
from livescale.services.worker.pipeline.running import Running
from livescale.services.worker.pipeline.wire import kv_slices, layers_of
from livescale.shared.bus.contract import BusError, Refusal
from livescale.shared.links.contract import Link, LinkError, Peer
from livescale.shared.messages.pipelines import MoveKv, Pipeline
from livescale.shared.subjects import GIVE_KV
from livescale.shared.transfer.flow_end import together

COME_SECONDS = 2.0  # for one part from all of them
GIVE_SECONDS = 1.0
T = TypeVar("T")

log = structlog.get_logger()


class KvMoves:
    """At one worker. Between any two there is a channel each way, from the first part that goes it on.

    A part may be of requests that have ended: then what comes of it is nobody's, as long as parts for a worker come one
    after the other, and none after it was told to compute.
    """

    def __init__(self, command: Pipeline, running: Running, link: Link) -> None:
        self.way: Way | None = None  # as it was last decided
        self._command = command
        self._running = running
        self._me, self._runner = running.parts.me, running.parts.runner
        self._bus, self._clock = running.parts.world.bus, running.parts.world.clock
        self._link = link
        self._addresses = {stage.node.id: stage.node.address for stage in command.stages}
        self._others = {one: layers for one in self._addresses if one != self._me and (layers := self._layers(one))}
        self._peers: dict[tuple[str, str], Peer] = {}  # by who sends and who receives
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Until cancelled: then nothing comes or goes any more."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None
            for pair in list(self._peers):
                await self._hang_up(*pair)

    async def take(self, order: MoveKv) -> None:
        """Have it come here. Raises Refusal: 409 where it does not, or is computed faster."""
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
        """Send it. Raises Refusal."""
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
            kv_slices(order, [], self._running.limits)
        except ValueError as error:
            raise Refusal(400, str(error)) from None

    def _layers(self, worker: str) -> list[range]:
        return layers_of(self._command, worker)

    def _decide(self) -> Way:
        way = self._way()
        if self.way is None or self.way.moves != way.moves:
            self.way = way
            log.info("kv_way", pipeline=self._command.id, moves=way.moves, reason=way.reason)
            self._running.changed()
        return way

    def _way(self) -> Way:
        running = self._running
        if running.manifest.shards > 1:
            return Way(False, "the ranks of an instance compute it together")
        others = sum(len(stretch) for layers in self._others.values() for stretch in layers)
        token_bytes = kv_bytes(running.manifest, 1, others, block_tokens=1)
        rates = running.link_rate.per_second, self._runner.rates.part_tokens_per_second
        return choose_way(running.switch_kv, token_bytes, *rates)

    async def _come(self, order: MoveKv) -> str | None:
        """Why it does not, if so."""
        running, came = self._running, dict[str, memoryview]()
        try:
            async with asyncio.timeout(COME_SECONDS):
                await together(*(self._fetch(order, source, came) for source in self._others))
            for source, data in came.items():
                slices = kv_slices(order, self._others[source], running.limits)
                await self._runner.import_slices(slices, data)
        except (BusError, LinkError, TimeoutError, ValueError, RuntimeError) as error:
            running.counts.kv_lost.inc()
            for source in self._others:
                await self._hang_up(source, self._me)
            return str(error) or f"it did not come within {COME_SECONDS:g} s"
        running.counts.moved.inc(sum(one.stop - one.start for one in order.spans))
        return None

    async def _fetch(self, order: MoveKv, source: str, came: dict[str, memoryview]) -> None:
        running = self._running
        slices = kv_slices(order, self._others[source], running.limits)
        size_bytes = sum(slice_bytes(running.manifest, one) for one in slices)
        await self._bus.call(GIVE_KV, order, timeout=GIVE_SECONDS, id=source)
        begun = self._clock.now()
        came[source] = await receive(await self._reach(source, self._me), order.number, size_bytes)
        running.moved(size_bytes, self._clock.now() - begun)

    async def _send(self, order: MoveKv) -> None:
        running = self._running
        try:
            slices = kv_slices(order, self._layers(self._me), running.limits)
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
        """Whoever waits at the other end learns of it at once."""
        peer = self._peers.pop((source, worker), None)
        if peer is not None:
            await close(peer)
