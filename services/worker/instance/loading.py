"""Parameters on their way into a worker: received, passed on, verified, and laid out for the kernels at once.

They yield to KV where both leave one worker: a request waits for its KV, a scale only for the last byte.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import structlog

from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.instance.metrics import LoadCounts
from livescale.services.worker.instance.spans import LoadTimes, WorkerSpans
from livescale.shared.links.contract import Link
from livescale.shared.links.meter import Paths
from livescale.shared.memory.devices import DeviceBytes
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.transfers import BlockReady, Load, Transfer, TransferState
from livescale.shared.process.run import World
from livescale.shared.runtime.waiting import Changes, together
from livescale.shared.subjects import BLOCK, TRANSFER
from livescale.shared.transfer.chunks import Chunk
from livescale.shared.transfer.flow_end import ModelCopy, ReadyBlocks, TransferFailed
from livescale.shared.transfer.memory_export import MemoryExport
from livescale.shared.transfer.receiver import BlockReceiver, Events

KV_BYTES = 3  # leave before each byte of parameters while there is always KV to send
STUCK_SECONDS = 0.1  # KV that does not move takes nothing from a link, and is not waited for
MOST_SECONDS = 1.0  # that a chunk waits for KV that hardly moves, as its receivers are slow


class KvFirst:
    """Whether KV is being sent, and when a chunk of parameters may be."""

    def __init__(self) -> None:
        self._sending = 0
        self._left_bytes = 0  # of KV, since it was last quiet, less what chunks have had for it
        self._changes = Changes()

    def begin(self) -> None:
        """Note that a piece of KV is being sent from now on."""
        self._sending += 1

    def end(self, size_bytes: int = 0) -> None:
        """Note that a piece was sent, or with nothing that it failed."""
        self._sending -= 1
        self._left_bytes = self._left_bytes + size_bytes if self._sending else 0
        self._changes.tell()

    async def wait(self, size_bytes: int) -> None:
        """Return when a chunk of so many bytes may leave: no KV does, enough of it has gone before, or too little."""
        if not self._sending:
            return
        now = asyncio.get_running_loop().time
        latest = now() + MOST_SECONDS
        while self._sending and self._left_bytes < KV_BYTES * size_bytes:
            try:
                async with asyncio.timeout_at(min(now() + STUCK_SECONDS, latest)):
                    await self._changes.wait()
            except TimeoutError:
                return
        self._left_bytes -= KV_BYTES * size_bytes if self._sending else 0


log = structlog.get_logger()

BlockMemory = list[memoryview] | list[DeviceBytes]  # of a model's blocks


@dataclass(frozen=True)
class Transport:
    """What moves parameters, checks and counts them. Each flow is a task of `tasks`. They yield to KV by `kv_first`."""

    link: Link
    hashing: Executor
    tasks: asyncio.TaskGroup
    memory_export: MemoryExport | None
    paths: Paths
    counts: LoadCounts
    kv_first: KvFirst = field(default_factory=KvFirst)

    @classmethod
    def of(
        cls,
        world: World,
        link: Link,
        hashing: Executor,
        tasks: asyncio.TaskGroup,
        memory_export: MemoryExport | None,
        paths: Paths,
    ) -> Self:
        """Make what moves parameters in this process, which counts them."""
        return cls(link, hashing, tasks, memory_export, paths, LoadCounts(world.telemetry))


class Loading:
    """The parameters of one plan, however many LOADs it takes. `on_block` is called when another block is laid out.

    Raises ValueError where the command's flows and blocks do not fit each other.
    """

    def __init__(
        self,
        worker: str,
        command: Load,
        memory: BlockMemory,
        world: World,
        runner: Runner,
        transport: Transport,
        on_block: Callable[[str, int], None],
    ) -> None:
        self.command = command
        self.memory = memory
        self.kv_blocks = 0
        self._places = list(memory)
        self._worker = worker
        self._bus = world.bus
        self._clock = world.clock
        self._runner = runner
        self._kv_first = transport.kv_first
        self._counts = transport.counts
        self._on_block = on_block
        self._ready = ReadyBlocks()
        self._verified = asyncio.PriorityQueue[int]()  # and not laid out: those first that run first
        self._first_byte_at: float | None = None
        self._times = LoadTimes(world.clock.wall())
        self._spans = WorkerSpans.of(world.telemetry, world.clock)
        self._laid_out = 0
        part = ModelCopy(worker, command.chunk_bytes, memory)
        events = Events(self._first_byte, self._block_verified, self._broken, transport.paths.note, self._counts.moved)
        blocks = command.manifest.blocks
        self._incoming = BlockReceiver(
            transport.link, part, blocks, transport.hashing, events, transport.tasks, transport.memory_export
        )
        self.offer = self._incoming.mapped.offer
        if command.parked:
            self._incoming.keep()
        self._incoming.follow(command.inflows, command.secret)

    @property
    def manifest(self) -> Manifest:
        return self.command.manifest

    def go_on(self, command: Load) -> None:
        """Receive what is missing along the flows of a new plan. A command of an earlier one changes nothing. Raises
        ValueError."""
        if self._incoming.follow(command.inflows, command.secret):
            self.command = command

    def own_memory(self) -> BlockMemory | None:
        """The blocks in this worker's own memory, if it has the whole model there: what is mapped is others'."""
        came = zip(self.memory, self._places, strict=True)
        own = self.manifest.layout != "plain" or all(block is place for block, place in came)
        return list(self._places) if own and self._laid_out == len(self.manifest.blocks) else None  # type: ignore[return-value]

    async def forget(self) -> None:
        """Let go of the memory, as what is mapped is the host's too. Flows may still run: a load that is cancelled
        before it has begun does not end them itself."""
        await self._incoming.stop()
        self.memory.clear()
        self._places.clear()
        self._incoming.mapped.forget()

    def may_send(self, chunk_bytes: int) -> Callable[[Chunk], Awaitable[None]]:
        """Return an awaitable that says when a chunk of this size may be passed on.

        That is as it arrives, or with its block where blocks are cut differently, and once the steps that are computed
        here have had their share of the time, and KV that is sent its share of the bytes.
        """
        same = chunk_bytes == self.command.chunk_bytes

        async def may_send(chunk: Chunk) -> None:
            if same:
                await self._incoming.arrivals.here(chunk)
            else:
                await self._ready.wait_ready(chunk.block)
            if paused := await self._runner.pauses.wait():
                self._counts.paused.inc(paused)
            await self._kv_first.wait(chunk.size)

        return may_send

    async def run(self, meet: Callable[[Load], Awaitable[None]], traceparent: str | None = None) -> bool:
        """Receive and lay out every block, with an engine that has met the other ranks. Returns whether all blocks
        came. A failure is reported to the planner, not raised. `traceparent` names the span of the scale."""
        self._times.traceparent = traceparent
        try:
            await together(self._receive(), self._lay_out(meet))
        except (TransferFailed, ValueError, RuntimeError, MemoryError) as error:
            reason = str(error) or type(error).__name__
            log.warning("load_failed", plan=self.command.plan_id, error=reason)
            self._incoming.arrivals.lose(reason)
            self._ready.lose(reason)
            self._tell("failed", error=reason)
            self._trace(reason)
            return False
        self._trace(None)
        return True

    def fail(self, reason: str) -> None:
        """Tell the planner that the instance is given up, for another reason than what arrives."""
        self._tell("failed", error=reason)

    def _trace(self, error: str | None) -> None:
        arrivals = self._incoming.arrivals
        self._spans.loaded(self.command, self._times, (arrivals.received_bytes, arrivals.shared_bytes), error)

    async def _receive(self) -> None:
        arrivals = self._incoming.arrivals
        try:
            await self._incoming.run()
        finally:
            self._counts.received.inc(arrivals.received_bytes)
            self._counts.shared.inc(arrivals.shared_bytes)
            self._counts.damaged.inc(arrivals.damaged.total())

    def _broken(self, ticket: int, failure: TransferFailed) -> None:
        log.warning("flow_lost", plan=self.command.plan_id, ticket=ticket, error=str(failure))
        self._counts.broken.inc()
        self._tell("broken", ticket=ticket, error=str(failure))

    async def _lay_out(self, meet: Callable[[Load], Awaitable[None]]) -> None:
        await meet(self.command)
        if shapes := self._runner.copied_shapes(self.manifest):
            # Loading takes longer, and the model more memory.
            log.info("matrices_copied", model=self.command.model, shapes=shapes)
        # The engine makes itself ready while the first bytes are on their way.
        self.kv_blocks = self.kv_blocks or await self._runner.load(self.manifest, self.command.max_model_len)
        while self._laid_out < len(self.manifest.blocks):
            index = await self._verified.get()
            await self._runner.add_block(index, await self._near(index))
            self._laid_out += 1
            self._times.blocks.append((index, self._clock.wall()))
            self._on_block(self.command.plan_id, index)
            self._tell_block(index)
        self._tell("whole")

    async def _near(self, index: int) -> memoryview | DeviceBytes:
        """Return block `index` where it is read fastest.

        Memory of others comes in small pages: matrices that are used as they lie would be read from there a quarter
        slower, at every step.
        """
        came, own = self.memory[index], self._places[index]
        if came is own or self.manifest.layout == "plain":
            return came
        assert isinstance(came, memoryview)
        assert isinstance(own, memoryview)
        await asyncio.to_thread(np.copyto, np.frombuffer(own, np.uint8), np.frombuffer(came, np.uint8))
        return own

    def _block_verified(self, index: int) -> None:
        self._ready.add(index)
        self._verified.put_nowait(index)

    def _first_byte(self) -> None:
        self._first_byte_at = self._clock.wall()
        self._tell("started")

    def _tell_block(self, index: int) -> None:
        block = BlockReady(
            worker=self._worker,
            model=self.command.model,
            instance=self.command.instance,
            plan_id=self.command.plan_id,
            index=index,
            ready=self._laid_out,
            total=len(self.manifest.blocks),
            at=self._clock.wall(),
        )
        self._bus.publish(BLOCK, block, worker=self._worker)

    def _tell(self, state: TransferState, ticket: int = 0, error: str | None = None) -> None:
        transfer = Transfer(
            plan_id=self.command.plan_id,
            node=self._worker,
            state=state,
            at=self._clock.wall(),
            ticket=ticket,
            received_bytes=self._incoming.arrivals.received_bytes,
            shared_bytes=self._incoming.arrivals.shared_bytes,
            first_byte_at=self._first_byte_at,
            error=error,
        )
        self._bus.publish(TRANSFER, transfer, plan=self.command.plan_id)
