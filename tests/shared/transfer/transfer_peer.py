"""A node of a transfer: its memory, what it receives, what it sends."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Self

import xxhash

from livescale.shared.links.contract import Link
from livescale.shared.links.link_path import LinkPath
from livescale.shared.links.meter import Paths
from livescale.shared.memory.arena import SharedBlocks
from livescale.shared.messages.parameters import Block
from livescale.shared.messages.transfers import Flow, Inflow, Node, Outflow, Send
from livescale.shared.transfer.chunks import Chunk
from livescale.shared.transfer.flow_end import ModelCopy, ReadyBlocks, Timeouts, TransferFailed
from livescale.shared.transfer.memory_export import MemoryExport, offer_of
from livescale.shared.transfer.receiver import BlockReceiver, Events
from livescale.shared.transfer.sender import BlockSender

SIZES = [300_001, 4096, 1, 1_000_000]
EVERY = range(len(SIZES))
CHUNK = 65_536
PLAN = "plan-1"
PATIENCE_SECONDS = 60.0  # nobody is given up because a machine is busy, where a test is not about that

OpenPeers = Callable[[int], Awaitable[list["TransferPeer"]]]


def some_blocks(sizes: Sequence[int] = SIZES, seed: int = 1) -> list[bytearray]:
    source = random.Random(seed)
    return [bytearray(source.randbytes(size)) for size in sizes]


def described(blocks: Sequence[bytearray]) -> list[Block]:
    return [
        Block(index=i, name=f"block.{i}", size_bytes=len(b), checksum=xxhash.xxh3_64_intdigest(b), tensors=[])
        for i, b in enumerate(blocks)
    ]


class TransferPeer:
    """A node of a transfer, which works within its `async with`. A source is given blocks to `hold`, a target's memory
    is filled by `receive`."""

    def __init__(self, id: str, link: Link, executor: Executor, export: MemoryExport | None = None) -> None:
        self.link = link
        self.export = export
        self.node = Node(id=id, place="worker", address=link.address)
        self.memory = [memoryview(bytearray(size)) for size in SIZES]
        self.held = ReadyBlocks()
        self.secret = b""
        self.least = PATIENCE_SECONDS
        self.seen: list[object] = []
        self.paths = Paths()
        self.moved: Counter[str] = Counter()  # bytes by path
        self.verified = ReadyBlocks()
        self.broken: list[tuple[int, TransferFailed]] = []
        self.lost = asyncio.Event()
        self.incoming: BlockReceiver | None = None
        self._executor = executor
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self.outgoing = BlockSender(self.node.id, self.link, self._tasks, lambda: None, self.export)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.outgoing.abort_all("the test ends")
        await self._tasks.__aexit__(None, None, None)

    def part(self, first: float = PATIENCE_SECONDS) -> ModelCopy:
        return ModelCopy(self.node.id, CHUNK, self.memory, Timeouts(first=first, least=self.least))

    def hold(self, blocks: Sequence[bytearray], ready: ReadyBlocks | None = None, shared: bool = False) -> None:
        """Have these blocks to give, at once or as they become ready; in memory that may be mapped, or not."""
        self.memory = [memoryview(block) for block in blocks]
        if shared:
            self.memory = SharedBlocks([len(block) for block in blocks])
            for view, block in zip(self.memory, blocks, strict=True):
                view[:] = block
        self.held = ReadyBlocks(range(len(blocks))) if ready is None else ready

    def send(self, *flows: Flow, to: Sequence["TransferPeer"]) -> None:
        """Send along the flows of which this node is the sender."""
        nodes = {peer.node.id: peer.node for peer in to}
        own = [
            Outflow(ticket=flow.ticket, downstream=nodes[flow.receiver], blocks=flow.blocks, steps=flow.steps)
            for flow in flows
            if flow.sender == self.node.id
        ]
        command = Send(plan_id=PLAN, version="v", outflows=own, chunk_bytes=CHUNK, epoch=1, secret=self.secret)
        offer = offer_of(self.memory) if self.incoming is None else self.incoming.mapped.offer
        self.outgoing.start(command, self.memory, self.wait_here, offer)

    def receive(
        self, blocks: Sequence[Block], *flows: Flow, to: Sequence["TransferPeer"], first: float = PATIENCE_SECONDS
    ) -> asyncio.Task[None]:
        """Its end of those flows of which it is the receiver; until everything is verified."""
        events = Events(
            lambda: self.seen.append("first byte"), self._verified, self._broken_off, self.paths.note, self._moved
        )
        self.incoming = BlockReceiver(
            self.link, self.part(first), blocks, self._executor, events, self._tasks, self.export
        )
        self.follow(*flows, to=to)
        return asyncio.create_task(self.incoming.run())

    def follow(self, *flows: Flow, to: Sequence["TransferPeer"]) -> None:
        assert self.incoming is not None
        nodes = {peer.node.id: peer.node for peer in to}
        own = [flow for flow in flows if flow.receiver == self.node.id]
        self.incoming.follow(
            [
                Inflow(ticket=f.ticket, upstream=nodes[f.sender], blocks=f.blocks, lane=f.lane, lanes=f.lanes)
                for f in own
            ],
            self.secret,
        )

    @property
    def received_bytes(self) -> int:
        assert self.incoming is not None
        return self.incoming.arrivals.received_bytes

    async def wait_here(self, chunk: Chunk) -> None:
        if self.incoming is None:
            await self.held.wait_ready(chunk.block)
        else:
            await self.incoming.arrivals.here(chunk)

    def _verified(self, index: int) -> None:
        self.seen.append(index)
        self.verified.add(index)

    def _moved(self, path: LinkPath, size_bytes: int) -> None:
        self.moved[path.name] += size_bytes

    def _broken_off(self, ticket: int, failure: TransferFailed) -> None:
        self.broken.append((ticket, failure))
        self.lost.set()


def flow(ticket: int, sender: TransferPeer, receiver: TransferPeer, **share: object) -> Flow:
    return Flow(sender=sender.node.id, receiver=receiver.node.id, ticket=ticket, **share)  # type: ignore[arg-type]


def chain(*peers: TransferPeer, ticket: int = 1) -> list[Flow]:
    return [flow(ticket + hop, *pair) for hop, pair in enumerate(itertools.pairwise(peers))]


async def carry_out(flows: Sequence[Flow], peers: Sequence[TransferPeer], blocks: Sequence[Block]) -> None:
    """Run the part of every node, until all receivers have everything."""
    receivers = [peer for peer in peers if peer.node.id in {one.receiver for one in flows}]
    receiving = [peer.receive(blocks, *flows, to=peers) for peer in receivers]
    for peer in peers:
        peer.send(*flows, to=peers)
    async with asyncio.timeout(60):
        await asyncio.gather(*receiving)
