"""A worker's end of one flow from a host under test."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from livescale.shared.links.contract import Link
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.transfers import FromDisk, Inflow, Node, Outflow, Send
from livescale.shared.subjects import SEND
from livescale.shared.transfer.flow_end import ModelCopy
from livescale.shared.transfer.receiver import BlockReceiver, Events
from tests.host.local import HOST, LocalHost

CHUNK_BYTES = 1 << 18


class Receiver:
    """Takes the whole model; `verified` blocks in the order in which they came."""

    def __init__(self, link: Link, here: LocalHost, manifest: Manifest, from_disk: FromDisk | None = None) -> None:
        self._link, self._here, self._manifest = link, here, manifest
        self._from_disk = from_disk
        self._executor = ThreadPoolExecutor(1)
        self._tasks = asyncio.TaskGroup()
        self._news = asyncio.Event()
        self._broken = False
        self.verified: list[int] = []
        self.memory = [memoryview(bytearray(block.size_bytes)) for block in manifest.blocks]

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        upstream = Node(id=HOST, place="host", address=self._here.joins[0].address or b"")
        events = Events(first_byte=lambda: None, block=self._block, broken=lambda ticket, failure: self._lose())
        part = ModelCopy("worker-0", CHUNK_BYTES, self.memory)
        incoming = BlockReceiver(self._link, part, self._manifest.blocks, self._executor, events, self._tasks)
        incoming.follow([Inflow(ticket=7, upstream=upstream)], b"")
        self._running = self._tasks.create_task(incoming.run())
        child = Outflow(ticket=7, downstream=Node(id="worker-0", place="worker", address=self._link.address))
        await self._here.bus.call(
            SEND,
            Send(
                plan_id="plan-1",
                version=self._manifest.version,
                outflows=[child],
                chunk_bytes=CHUNK_BYTES,
                epoch=1,
                from_disk=self._from_disk,
            ),
            timeout=5,
            id=HOST,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._running.cancel()
        await self._tasks.__aexit__(kind, error, at)
        self._executor.shutdown()

    async def blocks(self, count: int) -> None:
        await self._until(lambda: len(self.verified) >= count)

    async def lost(self) -> None:
        await self._until(lambda: self._broken)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def _block(self, index: int) -> None:
        self.verified.append(index)
        self._news.set()

    def _lose(self) -> None:
        self._broken = True
        self._news.set()
