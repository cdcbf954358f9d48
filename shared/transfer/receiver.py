"""Receiving: chunks land where they stay, over one flow or several, and blocks are verified when they are whole.

Blocks of a sender that is a process of the same machine are mapped from its memory instead.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from livescale.shared.links.contract import Buffer, Link, LinkError, View
from livescale.shared.links.link_path import MAPPED, LinkPath
from livescale.shared.memory.arena import Segment
from livescale.shared.messages.parameters import Block
from livescale.shared.messages.transfers import Inflow
from livescale.shared.runtime.waiting import MovingDeadline, together
from livescale.shared.transfer.arrivals import BlockDigest, ChunkArrivals
from livescale.shared.transfer.chunks import Chunk, select
from livescale.shared.transfer.flow_end import (
    LONG_SECONDS,
    TOLD,
    AdaptiveTimeout,
    ChunkRequest,
    FlowEnd,
    ModelCopy,
    TransferFailed,
    receive_heartbeats,
)
from livescale.shared.transfer.memory_export import MemoryExport

RECEIVES = 4  # posted ahead on every flow, so that no sender waits for us
FETCHES = 2  # of one block: a second wrong checksum says that no source has it right

log = structlog.get_logger()


class MappedBlocks:
    """Puts views of other processes' memory into `copy.memory`, in the place of what has not begun to arrive there."""

    def __init__(self, copy: ModelCopy, arrivals: ChunkArrivals, export: MemoryExport | None) -> None:
        self._copy = copy
        self._arrivals = arrivals
        self._export = export
        self._segment: Segment | None = None
        self._identities: dict[int, tuple[int, int]] = {}  # of the memory that each block is mapped from
        self._decided = asyncio.Event()

    async def take(self, end: FlowEnd, blocks: Collection[int]) -> frozenset[int]:
        """Map what can be mapped from the sender's memory. Returns those of `blocks` that it need not send."""
        segment = None if self._export is None else await self._export.ask(end)
        if segment is None:
            return frozenset()
        try:
            self._map(segment, blocks)
        except OSError as error:  # too many mappings: it can still be received
            log.warning("memory_not_mapped", peer=end.other.id, error=str(error))
        return frozenset(self._mapped_from(segment)) & frozenset(blocks)

    def decide(self) -> None:
        """Note that bytes come over the link: no more is going to be mapped than is by now."""
        self._decided.set()

    def forget(self) -> None:
        """Stop handing mapped memory on to other processes."""
        self._segment = None

    async def offer(self) -> Segment | None:
        """What may be handed on to other processes; waits until it is known whether there is anything."""
        await self._decided.wait()
        mapped = [] if self._segment is None else self._mapped_from(self._segment)
        return None if self._segment is None or not mapped else self._segment.only(mapped)

    def _map(self, segment: Segment, blocks: Collection[int]) -> None:
        memory, begun = self._copy.memory, self._arrivals.begun_blocks()
        fits = [block for block, (_, size) in segment.spans.items() if block in blocks and size == memory[block].nbytes]
        views = segment.views()
        # What is mapped already stays: another flow may count on it.
        for block in set(fits) - begun - self._identities.keys():
            self._copy.map(block, views[block])
            self._identities[block] = segment.identity
        self._segment = self._segment or segment
        self._decided.set()

    def _mapped_from(self, segment: Segment) -> list[int]:
        """The blocks mapped from `segment`, without those that came damaged: they may have come again over the link."""
        same = (block for block, identity in self._identities.items() if identity == segment.identity)
        return [block for block in same if not self._arrivals.damaged[block]]


@dataclass(frozen=True)
class Events:
    """What is called at the first byte, for each block that is verified, for each flow (its ticket) that is lost, with
    the path that a node's bytes take, and with the path and the bytes of each chunk that is here."""

    first_byte: Callable[[], None]
    block: Callable[[int], None]
    broken: Callable[[int, TransferFailed], None]
    path: Callable[[str, LinkPath], None] = lambda peer, path: None
    moved: Callable[[LinkPath, int], None] = lambda path, size_bytes: None


class BlockReceiver:
    """Fills `copy.memory` along the flows that it is told to follow.

    A flow that is lost leaves the others alone, and what it brought stays; another may bring the rest.
    """

    def __init__(
        self,
        link: Link,
        copy: ModelCopy,
        blocks: Sequence[Block],
        executor: Executor,
        events: Events,
        tasks: asyncio.TaskGroup,
        export: MemoryExport | None = None,
    ) -> None:
        """Without an `export` nothing is mapped. Raises ValueError where a block and its memory differ in size."""
        views: Sequence[View] = copy.memory
        for block, view in zip(blocks, views, strict=True):
            if block.size_bytes != view.nbytes:
                raise ValueError(f"block {block.index} has {block.size_bytes} bytes, its memory {view.nbytes}")
        self.arrivals = ChunkArrivals(copy)
        self.mapped = MappedBlocks(copy, self.arrivals, export)
        self._link = link
        self._copy = copy
        self._blocks = blocks
        self._digests = [BlockDigest() for _ in blocks]
        self._executor = executor
        self._events = events
        self._tasks = tasks
        self._ends: dict[int, FlowEnd] = {}
        self._flows: dict[int, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def follow(self, inflows: Sequence[Inflow], secret: bytes) -> bool:
        """Receive along these flows: those that are followed already go on, others end, new ones begin.

        New flows are proved by `secret`: a planner that takes a plan over draws another one. Returns False where flows
        are given and none is new: an earlier command came late or twice, and changes nothing. Raises ValueError.
        """
        ends = {flow.ticket: FlowEnd(self._copy, flow.ticket, flow.upstream, secret) for flow in inflows}
        chunks = {flow.ticket: select(self._copy.chunks, flow.blocks, flow.lane, flow.lanes) for flow in inflows}
        fresh = ends.keys() - self._ends.keys()
        if ends and not fresh:
            return False  # it knows nothing of the flows that came after it
        for ticket in self._flows.keys() - ends.keys():
            self._stop(ticket)
        for ticket in fresh:
            self._ends[ticket] = ends[ticket]
            self._flows[ticket] = self._tasks.create_task(self._fetch(ends[ticket], chunks[ticket]))
        return True

    def keep(self) -> None:
        """Take all blocks as they lie in the memory: they came before, and nobody has written there since."""
        self.mapped.decide()
        self.arrivals.keep()
        for block in self._blocks:
            self._events.block(block.index)

    async def run(self) -> None:
        """Check blocks until every one is verified. Raises TransferFailed for a block that came damaged too often."""
        try:
            while len(self.arrivals.verified) < len(self._blocks):
                await self._check(await self.arrivals.whole())
        finally:
            await self.stop()

    async def stop(self) -> None:
        """End all flows. Once this returns nothing is written into the memory any more. Idempotent."""
        for ticket in list(self._flows):
            self._stop(ticket)
        await self._ended()

    async def _check(self, number: int) -> None:
        block, found = self._blocks[number], await self._checksum(number)
        if found == block.checksum:
            self.arrivals.verify(number)
            self._events.block(block.index)
            return
        reason = f"block {block.index} ({block.name}) has checksum {found:#x}, expected {block.checksum:#x}"
        tickets = sorted(self.arrivals.forget(number))
        if self.arrivals.damaged[number] >= FETCHES:
            raise self._ends[tickets[0]].failed(reason)
        for ticket in tickets:
            self._stop(ticket)
            self._events.broken(ticket, self._ends[ticket].failed(reason))

    async def _checksum(self, number: int) -> int:
        digest, memory = self._digests[number], self._copy.memory[number]
        if digest.is_known(memory):
            return digest.of(memory)
        return await asyncio.get_running_loop().run_in_executor(self._executor, digest.of, memory)

    async def _fetch(self, end: FlowEnd, chunks: tuple[Chunk, ...]) -> None:
        await self._ended()  # what they were asked for is ours now
        await self.arrivals.settle()  # what came damaged is missing
        try:
            mapped = await self.mapped.take(end, {chunk.block for chunk in chunks})
            await self._receive(end, chunks, mapped)
        except TransferFailed as failure:
            self._events.broken(end.ticket, failure)
        finally:
            self.arrivals.unclaim(end.ticket)

    async def _receive(self, end: FlowEnd, chunks: tuple[Chunk, ...], mapped: Collection[int]) -> None:
        now = asyncio.get_running_loop().time

        async def lane(chunks: tuple[Chunk, ...]) -> None:
            for chunk in chunks:
                is_shared = chunk.block in mapped
                await peer.receive(end.tag(chunk), self._buffer(chunk, is_shared), timeout=LONG_SECONDS)
                timeout.moved(now())
                deadline.move(timeout.due)
                self._arrived(chunk, end.ticket, is_shared)
                self._events.moved(MAPPED if is_shared else path, chunk.size)

        def heard() -> None:
            timeout.restart(now())
            deadline.move(timeout.due)

        peer = await end.connect(self._link)
        path = peer.path
        self._events.path(end.other.id, MAPPED if mapped else path)
        timeout = AdaptiveTimeout(self._copy.timeouts, RECEIVES, now())
        try:
            async with AsyncExitStack() as undo, MovingDeadline(timeout.due) as deadline:
                undo.push_async_callback(peer.close)  # the sender learns at once that we take nothing more
                wanted = self.arrivals.claim(chunks, end.ticket)
                await end.ask(peer, ChunkRequest(wanted, mapped))
                lanes = (lane(wanted[start::RECEIVES]) for start in range(RECEIVES))
                await together(receive_heartbeats(end, peer, heard), *lanes)
        except TimeoutError:
            raise end.failed(f"nothing arrived for {timeout.limit:g} s") from None
        except LinkError as error:
            raise end.failed(str(error)) from error

    def _buffer(self, chunk: Chunk, is_shared: bool) -> Buffer:
        if is_shared:
            return Buffer(memoryview(bytearray(TOLD)))
        return Buffer(self._copy.view(chunk), self._digests[chunk.block].write(chunk.offset))

    def _arrived(self, chunk: Chunk, ticket: int, is_shared: bool) -> None:
        self.mapped.decide()
        if not self.arrivals.begun:
            self._events.first_byte()
        self.arrivals.add(chunk, ticket, is_shared)

    def _stop(self, ticket: int) -> None:
        flow = self._flows.pop(ticket, None)
        if flow is not None:
            flow.cancel()
            self._ending.add(flow)

    async def _ended(self) -> None:
        """Wait until the flows that were stopped have let go of the memory."""
        while self._ending:
            await asyncio.wait(self._ending)
            self._ending = {flow for flow in self._ending if not flow.done()}
