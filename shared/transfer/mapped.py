"""Blocks that a receiver maps from its senders' memory where these are processes of the same machine."""

import asyncio
from collections.abc import Collection

import structlog

from livescale.shared.memory.segment import Segment
from livescale.shared.transfer.arrivals import Arrivals
from livescale.shared.transfer.flow_end import FlowEnd, Part
from livescale.shared.transfer.memory_export import Door

log = structlog.get_logger()


class MappedBlocks:
    """Puts views of other processes' memory into `part.memory`, in the place of what has not begun to arrive there."""

    def __init__(self, part: Part, arrivals: Arrivals, door: Door | None) -> None:
        self._part = part
        self._arrivals = arrivals
        self._door = door
        self._segment: Segment | None = None
        self._identities: dict[int, tuple[int, int]] = {}  # of the memory that each block is mapped from
        self._decided = asyncio.Event()

    async def take(self, end: FlowEnd, blocks: Collection[int]) -> frozenset[int]:
        """Those of `blocks` that need not be sent along this flow: they are mapped from its sender's memory."""
        segment = None if self._door is None else await self._door.ask(end)
        if segment is None:
            return frozenset()
        try:
            self._map(segment, blocks)
        except OSError as error:  # too many mappings: it can still be received
            log.warning("memory_not_mapped", peer=end.other.id, error=str(error))
        return frozenset(self._mapped_from(segment)) & frozenset(blocks)

    def decide(self) -> None:
        """What has not been mapped by now may be received over the link."""
        self._decided.set()

    def forget(self) -> None:
        """Hand nothing on any more."""
        self._segment = None

    async def offer(self) -> Segment | None:
        """What may be handed on to other processes, once it is known whether there is anything."""
        await self._decided.wait()
        mapped = [] if self._segment is None else self._mapped_from(self._segment)
        return None if self._segment is None or not mapped else self._segment.only(mapped)

    def _map(self, segment: Segment, blocks: Collection[int]) -> None:
        memory, begun = self._part.memory, self._arrivals.begun_blocks()
        fits = [block for block, (_, size) in segment.spans.items() if block in blocks and size == memory[block].nbytes]
        views = segment.views()
        # What is mapped already stays: another flow may count on it.
        for block in set(fits) - begun - self._identities.keys():
            self._part.map(block, views[block])
            self._identities[block] = segment.identity
        self._segment = self._segment or segment
        self._decided.set()

    def _mapped_from(self, segment: Segment) -> list[int]:
        """What came damaged from there may since have come right, over the link, into pages of our own."""
        same = (block for block, identity in self._identities.items() if identity == segment.identity)
        return [block for block in same if not self._arrivals.damaged[block]]
