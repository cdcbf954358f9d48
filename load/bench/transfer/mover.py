"""Moves parameters for a bench over a link, as workers do, and says when each part of it was over."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import assert_never

import msgspec
import numpy as np
import xxhash

from livescale.load.bench.transfer.node_messages import (
    Check,
    Copy,
    Done,
    Failed,
    Hop,
    Job,
    Meet,
    Read,
    Share,
    Stream,
    Streams,
)
from livescale.services.worker.mesh import CHANNEL
from livescale.shared.links.contract import Buffer, Link, LinkError
from livescale.shared.links.link_path import LinkPath
from livescale.shared.links.process_memory import read
from livescale.shared.messages.parameters import Block
from livescale.shared.messages.transfers import Send
from livescale.shared.runtime.waiting import together
from livescale.shared.transfer.chunks import Chunk
from livescale.shared.transfer.flow_end import ModelCopy, TransferFailed
from livescale.shared.transfer.memory_export import MemoryExport, offer_of
from livescale.shared.transfer.receiver import RECEIVES, BlockReceiver, Events
from livescale.shared.transfer.sender import SENDS, BlockSender

HOP_SECONDS = 30.0


async def _here(chunk: Chunk) -> None:
    """Return at once: a source has every chunk from the start."""


@dataclass
class Marks:
    """When a receiver's last channel was open, and its first chunk here; 0 before."""

    connected: float = 0.0
    first_byte: float = 0.0

    def note_path(self, peer: str, path: LinkPath) -> None:
        self.connected = time.monotonic()

    def note_byte(self) -> None:
        self.first_byte = time.monotonic()


@dataclass(frozen=True)
class Mover:
    """Does the jobs. `here`: when a source has a chunk."""

    link: Link
    memory_export: MemoryExport | None
    memory: list[memoryview]
    spare: Sequence[memoryview]
    executor: Executor
    here: Callable[[Chunk], Awaitable[None]] = _here

    async def timed(self, job: Job) -> Done | Failed:
        began, cpu = time.monotonic(), time.process_time()
        try:
            ends = await self._do(job, marks := Marks())
        except (LinkError, TransferFailed, OSError) as error:
            return Failed(str(error))
        done = Done(began=began, ended=time.monotonic(), cpu=time.process_time() - cpu, ends=ends)
        done = msgspec.structs.replace(done, connected=marks.connected, first_byte=marks.first_byte)
        if isinstance(job, Hop) and not self._holds(job.takes):
            return Failed("the hop delivered other bytes than were sent")
        if isinstance(job, Read) or (isinstance(job, Hop) and job.takes) or (isinstance(job, Share) and job.inflows):
            self._wipe()
        return done

    def _holds(self, blocks: Sequence[Block]) -> bool:
        return all(xxhash.xxh3_64_intdigest(self.memory[block.index]) == block.checksum for block in blocks)

    def _wipe(self) -> None:
        # What this job left must not let the next one pass.
        for view in self.memory:
            np.frombuffer(view, np.uint8)[:] = 0

    async def _do(self, job: Job, marks: Marks) -> tuple[float, ...]:
        """When each of several flows or blocks ended."""
        match job:
            case Copy() | Read() | Check():
                self._do_alone(job)
            case Hop():
                await self._hop(job)
            case Share():
                return await self._share(job, marks)
            case Streams(streams):
                return tuple(await asyncio.gather(*map(self._stream, streams)))
            case Meet(peer, ends):
                channel = await self.link.connect(peer.address, timeout=HOP_SECONDS, channel=CHANNEL)
                if ends:
                    await channel.close()
            case _:
                assert_never(job)
        return ()

    def _do_alone(self, job: Copy | Read | Check) -> None:
        """What takes nothing of another process but its memory."""
        match job:
            case Copy():
                for source, target in zip(self.memory, self.spare, strict=True):
                    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
            case Read(pid, addresses):
                for address, view in zip(addresses, self.memory, strict=True):
                    read(pid, address, view)
            case Check():
                for view in self.memory:
                    xxhash.xxh3_64_intdigest(view)

    async def _hop(self, job: Hop) -> None:
        peer = await self.link.connect(job.peer.address, timeout=HOP_SECONDS)
        move = peer.receive if job.takes else peer.send

        async def lane(start: int) -> None:
            for index in range(start, job.count, RECEIVES):
                await move(index, Buffer(self.memory[index]), timeout=HOP_SECONDS)

        await together(*(lane(start) for start in range(RECEIVES)))

    async def _stream(self, stream: Stream) -> float:
        peer = await self.link.connect(stream.peer.address, timeout=HOP_SECONDS)
        move, lanes = (peer.receive, RECEIVES) if stream.takes else (peer.send, SENDS)
        block = self.spare[0] if stream.takes else self.memory[0]
        buffer = Buffer(block[: stream.message_bytes])

        async def lane(start: int) -> None:
            for number in range(start, stream.messages, lanes):
                await move(number, buffer, timeout=HOP_SECONDS)

        await together(*(lane(start) for start in range(lanes)))
        return time.monotonic()

    async def _share(self, job: Share, marks: Marks) -> tuple[float, ...]:
        """When each block was verified. Raises TransferFailed when a flow that brings something is lost."""
        lost: list[TransferFailed] = []
        verified: dict[int, float] = {}

        def verify(index: int) -> None:
            verified[index] = time.monotonic()

        def broken(ticket: int, error: TransferFailed) -> None:
            lost.append(error)
            incoming.arrivals.lose(str(error))
            receiving.cancel()

        send = Send(plan_id="bench", version="bench", outflows=job.outflows, chunk_bytes=job.chunk_bytes, epoch=0)
        memory = self.memory[: len(job.blocks)]
        part = ModelCopy("node", job.chunk_bytes, memory)  # what is mapped is let go with the job
        events = Events(first_byte=marks.note_byte, block=verify, broken=broken, path=marks.note_path)
        async with asyncio.TaskGroup() as tasks:
            outgoing = BlockSender("node", self.link, tasks, lambda: None, self.memory_export)
            if job.inflows:
                incoming = BlockReceiver(self.link, part, job.blocks, self.executor, events, tasks, self.memory_export)
                receiving = tasks.create_task(incoming.run())
                incoming.follow(job.inflows, secret=b"")
                outgoing.start(send, part.memory, incoming.arrivals.here, incoming.mapped.offer)
            else:
                outgoing.start(send, part.memory, self.here, offer_of(self.memory))
        if lost:
            raise lost[0]
        if job.maps and incoming.arrivals.received_bytes:
            raise LinkError(f"{incoming.arrivals.received_bytes} bytes came over the link and should have been mapped")
        return tuple(verified[index] for index in sorted(verified))
