"""A node's copy of a model and which of its blocks are ready, the ends of the flows that move it, and how they fail.

On every flow the sender shows that it is there: a hop that waits for its own upstream is slow through no fault of its
own.
"""

import asyncio
import itertools
import struct
from collections.abc import Callable, Collection, Iterable, MutableSequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from livescale.shared.bus.contract import Bus
from livescale.shared.links.contract import Buffer, Link, LinkError, Peer, View, Views
from livescale.shared.messages.transfers import Node, Transfer
from livescale.shared.runtime.clock import Clock
from livescale.shared.runtime.waiting import Changes
from livescale.shared.subjects import TRANSFER
from livescale.shared.transfer.chunks import BLOCK_BITS, CHUNK_BITS, Chunk, chunk_tag, cut

FADING = 7 / 8  # of what a slow chunk counts, with every chunk after it

CONNECT_SECONDS = 5.0
WANTED = (1 << BLOCK_BITS) - 1  # in the place of a block: which chunks are wanted, and heartbeats
MAPPED = 1 << 31  # added to a chunk's number: the receiver sees the sender's memory, and needs to be told only when
NOTHING = (1 << 32) - 1  # in the place of a chunk's number
TOLD = b"\0"  # in the place of a chunk's bytes

HERE, LAST = b"\0", b"\1"
LONG_SECONDS = 3600.0  # those that receive heartbeats have deadlines of their own


@dataclass(frozen=True)
class Timeouts:
    """How long a flow may be silent before it is given up.

    Until the first chunk has shown how fast chunks move it is `first` seconds; then `factor` times what they took of
    late, but at least `least` seconds. A sender waits `first` seconds for chunks that it does not have yet, and sends
    heartbeats meanwhile.
    """

    first: float = 30.0
    least: float = 1.0
    factor: float = 8.0

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between two heartbeats of a sender; a few of them may be late."""
        return self.least / 4


class AdaptiveTimeout:
    """Follows how fast the chunks of a flow move, `window` of them under way, and says when it is overdue."""

    def __init__(self, timeouts: Timeouts, window: int, now: float) -> None:
        self._timeouts = timeouts
        self._window = window
        self._since = now
        self._seconds: float | None = None  # for a chunk, the slowest of late: contention rises suddenly

    def restart(self, now: float) -> None:
        """Note a sign of the other end, or that it only now has something to do: its silence begins anew."""
        self._since = now

    def moved(self, now: float) -> None:
        """Note that a chunk arrived, or that the receiver took it."""
        self._seconds = max(now - self._since, (self._seconds or 0.0) * FADING)
        self.restart(now)

    @property
    def limit(self) -> float:
        """How many seconds the flow may be silent, by how fast its chunks moved of late."""
        if self._seconds is None:
            return self._timeouts.first
        return max(self._timeouts.least, self._timeouts.factor * self._window * self._seconds)

    @property
    def due(self) -> float:
        """The moment by which something has to come, in the time that `now` is given in."""
        return self._since + self.limit


class TransferFailed(Exception):
    """A transfer between `node`, which noticed it, and `peer` broke off. Chunks in flight may have come in part."""

    def __init__(self, node: str, peer: str, reason: str) -> None:
        super().__init__(f"transfer between {node} and {peer} failed: {reason}")
        self.node = node
        self.peer = peer
        self.reason = reason


class NeverReached(TransferFailed):
    """A flow to or from `peer` could not begin: there was no connection, and the other end knows of nothing."""


class BlocksLost(Exception):
    """The blocks that were waited for will never come; says why."""


@dataclass(frozen=True)
class ModelCopy:
    """A node's memory for a model, which flows fill or are sent from. `memory` has a view for each block.

    The view of a block is replaced when it is mapped from another process. Raises ValueError where blocks or chunks are
    too many for a tag.
    """

    node: str
    chunk_bytes: int
    memory: Views
    timeouts: Timeouts = field(default_factory=Timeouts)
    chunks: tuple[Chunk, ...] = field(init=False)

    def __post_init__(self) -> None:
        chunks = cut([view.nbytes for view in self.memory], self.chunk_bytes)
        if chunks:
            chunk_tag(0, chunks[-1].block, max(chunk.index for chunk in chunks))
        object.__setattr__(self, "chunks", chunks)

    def map(self, block: int, view: memoryview) -> None:
        """Take `view`, memory of another process of this machine, as a block's memory.

        Both are in the host's memory.
        """
        cast("MutableSequence[memoryview]", self.memory)[block] = view

    def view(self, chunk: Chunk) -> View:
        return self.memory[chunk.block][chunk.offset : chunk.offset + chunk.size]


class ReadyBlocks:
    """The blocks that a source may send. A host adds blocks as it reads them, a worker as it verifies them."""

    def __init__(self, ready: Iterable[int] = ()) -> None:
        self._ready = set(ready)
        self._lost: str | None = None
        self._changed = Changes()

    def add(self, index: int) -> None:
        self._ready.add(index)
        self._changed.tell()

    def lose(self, reason: str) -> None:
        """Tell all that wait that no further block will come, and why."""
        self._lost = reason
        self._changed.tell()

    async def wait_ready(self, index: int) -> None:
        """Return once the block may be sent. Raises BlocksLost where it will never come."""
        while index not in self._ready:
            if self._lost is not None:
                raise BlocksLost(f"block {index}: {self._lost}")
            await self._changed.wait()


@dataclass(frozen=True)
class ChunkRequest:
    """What a receiver asks for: chunks, in the order in which it wants them. The receiver sees blocks that are `mapped`
    in the sender's memory, and is told only when they are there."""

    chunks: tuple[Chunk, ...]
    mapped: Collection[int] = frozenset()


@dataclass(frozen=True)
class FlowEnd:
    """One end of a flow: this node's `copy`, the node at the `other` end, and the plan's `secret`.

    Each end proves to the other that it knows the secret. Raises ValueError for a bad ticket.
    """

    copy: ModelCopy
    ticket: int
    other: Node
    secret: bytes = field(default=b"", repr=False)
    _first_tag: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_first_tag", chunk_tag(self.ticket, 0, 0))

    def tag(self, chunk: Chunk) -> int:
        """The tag of a chunk of this copy: all of them fit."""
        return self._first_tag | chunk.block << CHUNK_BITS | chunk.index

    async def connect(self, link: Link) -> Peer:
        """Connect to the node at the other end, on this flow's own channel. Raises NeverReached."""
        address, secret = self.other.address, self.secret
        try:
            return await link.connect(address, timeout=CONNECT_SECONDS, channel=self.ticket, secret=secret)
        except LinkError as error:
            raise NeverReached(self.copy.node, self.other.id, str(error)) from error

    async def ask(self, peer: Peer, wanted: ChunkRequest) -> None:
        """Tell the sending end which chunks to send, in which order. Raises LinkError."""
        numbers = [chunk.number | MAPPED * (chunk.block in wanted.mapped) for chunk in wanted.chunks]
        numbers += [NOTHING] * (len(self.copy.chunks) - len(numbers))
        message = bytearray(struct.pack(f"<{len(numbers)}I", *numbers))
        await peer.send(self._wanted_tag, Buffer(memoryview(message)), timeout=self.copy.timeouts.first)

    async def hear(self, peer: Peer) -> ChunkRequest:
        """Wait for what the receiving end asks for.

        Raises LinkError, also where it asks for a chunk that does not exist.
        """
        chunks = self.copy.chunks
        message = bytearray(4 * len(chunks))
        await peer.receive(self._wanted_tag, Buffer(memoryview(message)), timeout=self.copy.timeouts.first)
        words = [word for (word,) in struct.iter_unpack("<I", message) if word != NOTHING]
        numbers = [word & ~MAPPED for word in words]
        if any(number >= len(chunks) for number in numbers):
            raise LinkError(f"{self.other.id} asks for chunk {max(numbers)} of {len(chunks)}")
        mapped = frozenset(chunks[word & ~MAPPED].block for word in words if word & MAPPED)
        return ChunkRequest(tuple(chunks[number] for number in numbers), mapped)

    def heartbeat_tag(self, number: int) -> int:
        """The tag of the sender's n-th heartbeat. Heartbeats go the other way than the message under `_wanted_tag`."""
        return chunk_tag(self.ticket, WANTED, number)

    def failed(self, reason: str) -> TransferFailed:
        return TransferFailed(self.copy.node, self.other.id, reason)

    @property
    def _wanted_tag(self) -> int:
        return chunk_tag(self.ticket, WANTED, 0)


async def send_heartbeats(end: FlowEnd, peer: Peer, done: asyncio.Event) -> None:
    """Send a heartbeat at once, then one every `heartbeat_seconds`, and the last when `done` is set.

    Raises LinkError.
    """
    timeouts = end.copy.timeouts
    for number in itertools.count():
        word = LAST if done.is_set() else HERE
        await peer.send(end.heartbeat_tag(number), Buffer(memoryview(word)), timeout=timeouts.first)
        if word == LAST:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeouts.heartbeat_seconds):
                await done.wait()


async def receive_heartbeats(end: FlowEnd, peer: Peer, heard: Callable[[], None]) -> None:
    """Receive heartbeats up to the last one, and call `heard` at each. Raises LinkError.

    Waiting for the last one leaves no receive behind when the flow ends.
    """
    for number in itertools.count():
        word = bytearray(len(HERE))
        await peer.receive(end.heartbeat_tag(number), Buffer(memoryview(word)), timeout=LONG_SECONDS)
        heard()
        if word == LAST:
            return


@dataclass(frozen=True)
class LostFlows:
    """Tells of lost flows on the `bus`.

    A receiver that was never reached hears nothing of its flow until its patience ends, so its sender speaks for it.
    A process that is told twice, or of a flow that was replaced, ignores it by the ticket.
    """

    bus: Bus
    clock: Clock

    def tell(self, plan_id: str, receiver: str, ticket: int, failure: Exception) -> None:
        """Say that what comes to `receiver` along the flow `ticket` of a plan ended before its end."""
        event = Transfer(
            plan_id=plan_id, node=receiver, state="broken", at=self.clock.wall(), ticket=ticket, error=str(failure)
        )
        self.bus.publish(TRANSFER, event, plan=plan_id)
