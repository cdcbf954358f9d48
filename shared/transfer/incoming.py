"""Receiving: chunks land where they stay, over one flow or several, and blocks are verified when they are whole."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from dataclasses import dataclass

from livescale.shared.links.contract import Buffer, Link, LinkError, View
from livescale.shared.links.link_path import MAPPED, LinkPath
from livescale.shared.messages.parameters import Block
from livescale.shared.messages.transfers import Inflow
from livescale.shared.transfer.arrivals import Arrivals
from livescale.shared.transfer.checksum import checksum
from livescale.shared.transfer.chunks import Chunk, select
from livescale.shared.transfer.flow_end import TOLD, FlowEnd, Part, TransferFailed, Wanted, together
from livescale.shared.transfer.mapped import MappedBlocks
from livescale.shared.transfer.memory_export import Door
from livescale.shared.transfer.signs import LONG_SECONDS, hear_signs
from livescale.shared.transfer.timeouts import Pace

RECEIVES = 4  # posted ahead on every flow, so that no sender waits for us
FETCHES = 2  # of one block: a second wrong checksum says that no source has it right


@dataclass(frozen=True)
class Events:
    """Who is told: of the first byte, of each block that is verified, of each flow (its ticket) that was lost; and
    which way a node's bytes come."""

    first_byte: Callable[[], None]
    block: Callable[[int], None]
    broken: Callable[[int, TransferFailed], None]
    path: Callable[[str, LinkPath], None] = lambda peer, path: None


class Incoming:
    """Fills `part.memory` along the flows that it is told to follow. A flow that is lost leaves the others alone, and
    what it brought here; another may bring the rest."""

    def __init__(
        self,
        link: Link,
        part: Part,
        blocks: Sequence[Block],
        executor: Executor,
        events: Events,
        tasks: asyncio.TaskGroup,
        door: Door | None = None,
    ) -> None:
        """Without a door nothing is mapped. Raises ValueError where a block and its memory differ in size."""
        views: Sequence[View] = part.memory
        for block, view in zip(blocks, views, strict=True):
            if block.size_bytes != view.nbytes:
                raise ValueError(f"block {block.index} has {block.size_bytes} bytes, its memory {view.nbytes}")
        self.arrivals = Arrivals(part)
        self.mapped = MappedBlocks(part, self.arrivals, door)
        self._link = link
        self._part = part
        self._blocks = blocks
        self._executor = executor
        self._events = events
        self._tasks = tasks
        self._ends: dict[int, FlowEnd] = {}
        self._flows: dict[int, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def follow(self, inflows: Sequence[Inflow], secret: bytes) -> None:
        """Receive along these: those that are followed already go on, the others end. Raises ValueError.

        `secret`: of the new ones. Whoever took the plan over from who made it has drawn another.
        """
        ends = {flow.ticket: FlowEnd(self._part, flow.ticket, flow.upstream, secret) for flow in inflows}
        chunks = {flow.ticket: select(self._part.chunks, flow.blocks, flow.lane, flow.lanes) for flow in inflows}
        for ticket in self._flows.keys() - ends.keys():
            self._stop(ticket)
        for ticket in ends.keys() - self._ends.keys():
            self._ends[ticket] = ends[ticket]
            self._flows[ticket] = self._tasks.create_task(self._fetch(ends[ticket], chunks[ticket]))

    async def run(self) -> None:
        """Until every block is verified. Raises TransferFailed for a block that came damaged too often."""
        try:
            while len(self.arrivals.verified) < len(self._blocks):
                await self._check(await self.arrivals.whole())
        finally:
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
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, checksum, self._part.memory[number])

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
                buffer = Buffer(memoryview(bytearray(TOLD))) if is_shared else self._part.buffer(chunk)
                await peer.receive(end.tag(chunk), buffer, timeout=LONG_SECONDS)
                pace.moved(now())
                wait_longer()
                self._arrived(chunk, end.ticket, is_shared)

        def heard() -> None:
            pace.restart(now())
            wait_longer()

        def wait_longer() -> None:
            if not deadline.expired():
                deadline.reschedule(pace.due)

        peer = await end.connect(self._link)
        self._events.path(end.other.id, MAPPED if mapped else peer.path)
        pace = Pace(self._part.patience, RECEIVES, now())
        try:
            async with AsyncExitStack() as undo, asyncio.timeout_at(pace.due) as deadline:
                undo.push_async_callback(peer.close)  # the sender learns at once that we take nothing more
                wanted = self.arrivals.claim(chunks, end.ticket)
                await end.ask(peer, Wanted(wanted, mapped))
                lanes = (lane(wanted[start::RECEIVES]) for start in range(RECEIVES))
                await together(hear_signs(end, peer, heard), *lanes)
        except TimeoutError:
            raise end.failed(f"nothing came for {pace.limit:g} s") from None
        except LinkError as error:
            raise end.failed(str(error)) from error

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
