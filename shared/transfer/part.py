"""A node's part in a transfer, and how it fails."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field

from shared.links.contract import Buffer, Link, LinkError, Peer
from shared.messages.scaling import Node
from shared.transfer.chunks import BLOCK_BITS, Chunk, chunk_tag, cut
from shared.transfer.patience import Patience

CONNECT_SECONDS = 5.0
WANTED = (1 << BLOCK_BITS) - 1  # in the place of a block: the message that says which chunks are wanted


class TransferFailed(Exception):
    """A transfer between `node` (who says so) and `peer` broke off; what was in flight is garbage."""

    def __init__(self, node: str, peer: str, reason: str) -> None:
        super().__init__(f"transfer between {node} and {peer} failed: {reason}")
        self.node = node
        self.peer = peer
        self.reason = reason


@dataclass(frozen=True)
class Part:
    """What `node` moves under `ticket`: `memory` has a view per block, `downstream` gets every one of them.

    Raises ValueError where blocks or chunks are too many for a tag.
    """

    node: str
    ticket: int
    chunk_bytes: int
    memory: Sequence[memoryview]
    downstream: Sequence[Node] = ()
    patience: Patience = field(default_factory=Patience)
    secret: bytes = field(default=b"", repr=False)
    chunks: tuple[Chunk, ...] = field(init=False)

    def __post_init__(self) -> None:
        chunks = cut([view.nbytes for view in self.memory], self.chunk_bytes)
        for chunk in chunks:
            chunk_tag(self.ticket, chunk.block, chunk.index)
        object.__setattr__(self, "chunks", chunks)

    def tag(self, chunk: Chunk) -> int:
        return chunk_tag(self.ticket, chunk.block, chunk.index)

    def buffer(self, chunk: Chunk) -> Buffer:
        return Buffer(self.memory[chunk.block][chunk.offset : chunk.offset + chunk.size])

    async def ask(self, peer: Peer, wanted: Iterable[Chunk]) -> None:
        """Tell the sending end which chunks to send: those that are not here already. Raises LinkError."""
        flags = bytearray(len(self.chunks))
        for chunk in wanted:
            flags[chunk.number] = 1
        tag = chunk_tag(self.ticket, WANTED, 0)
        await peer.send(tag, Buffer(memoryview(flags)), timeout=self.patience.first)

    async def hear(self, peer: Peer) -> tuple[Chunk, ...]:
        """The chunks that the receiving end asks for. Raises LinkError."""
        flags = bytearray(len(self.chunks))
        tag = chunk_tag(self.ticket, WANTED, 0)
        await peer.receive(tag, Buffer(memoryview(flags)), timeout=self.patience.first)
        return tuple(chunk for chunk in self.chunks if flags[chunk.number])

    async def connect(self, link: Link, node: Node) -> Peer:
        try:
            return await link.connect(node.address, timeout=CONNECT_SECONDS, channel=self.ticket, secret=self.secret)
        except LinkError as error:
            raise TransferFailed(self.node, node.id, str(error)) from error


async def together(*work: Coroutine[None, None, None]) -> None:
    """Run all to the end. When one fails the others are cancelled and its error alone is raised."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for one in work:
                tasks.create_task(one)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
