"""A source that serves while it sends: a worker's scheduler, engine, link and flows in one process on one core. Only
the bus of a real worker is missing."""

import asyncio
import itertools
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import uvloop

from livescale.load.bench.transfer.mover import Mover
from livescale.load.bench.transfer.node_messages import Done, Failed, Hello, Share, end_with_parent, tell
from livescale.load.engine_alone import EngineAlone, engine_over
from livescale.services.host.checkpoint import open_checkpoint
from livescale.shared.links.contract import LinkError
from livescale.shared.links.open import open_link
from livescale.shared.memory.arena import Arena, placed_bytes
from livescale.shared.messages.message import Message
from livescale.shared.messages.parameters import DType, Manifest
from livescale.shared.messages.requests import Submit
from livescale.shared.runtime.settings import LinkSettings

DTYPE: DType = "float32"
REQUESTS = 4  # at a time
PROMPT_TOKENS, OUTPUT_TOKENS = 32, 256  # prefill is rare
NEVER = 4e9


class DecodingSource(Message, frozen=True):
    """What the process is made with: a checkpoint, and the core it runs on."""

    settings: LinkSettings
    checkpoint: str
    core: int


class Decode(Message, frozen=True):
    """Count the tokens that are made during its share in a plan, or for some seconds."""

    seconds: float = 0.0
    share: Share | None = None


def main(descriptor: int) -> None:
    """Do one job after the other until the pipe brings nothing, or ends."""
    end_with_parent()
    with Connection(descriptor) as pipe, suppress(EOFError, KeyboardInterrupt):
        source = msgspec.msgpack.decode(pipe.recv_bytes(), type=DecodingSource)
        os.sched_setaffinity(0, [source.core])
        try:
            uvloop.run(_serve(pipe, source))
        except LinkError as error:
            tell(pipe, Failed(str(error)))


async def _serve(pipe: Connection, source: DecodingSource) -> None:
    checkpoint = Path(source.checkpoint)
    sizes = block_sizes(checkpoint)
    memory = Arena(placed_bytes(sizes)).place(sizes)
    manifest = read_blocks(checkpoint, memory)
    link = await open_link(source.settings)
    with ThreadPoolExecutor(1) as executor:
        async with always_decoding(manifest, memory) as engine:
            mover = Mover(link, None, memory, [], executor, lambda chunk: _spared(engine))
            tell(pipe, Hello(link.address, tuple(manifest.blocks)))
            while data := await asyncio.to_thread(pipe.recv_bytes):
                tell(pipe, await _decode(msgspec.msgpack.decode(data, type=Decode), mover, engine))
    await link.close()


async def _spared(engine: EngineAlone) -> None:
    """As a worker does before it sends a chunk."""
    await engine.pauses.wait()


async def _decode(job: Decode, mover: Mover, engine: EngineAlone) -> Done | Failed:
    began, cpu, loop, tokens = time.monotonic(), time.process_time(), time.thread_time(), engine.tokens
    await asyncio.sleep(job.seconds)
    done = await mover.timed(job.share) if job.share is not None else None
    if isinstance(done, Failed):
        return done
    cpu, loop = time.process_time() - cpu, time.thread_time() - loop
    return Done(began=began, ended=time.monotonic(), cpu=cpu, tokens=engine.tokens - tokens, loop=loop)


def block_sizes(checkpoint: Path) -> list[int]:
    """The bytes of each block of the model as it is served."""
    return [layout.size_bytes for layout in open_checkpoint(checkpoint, DTYPE).layouts]


def read_blocks(checkpoint: Path, memory: Sequence[memoryview]) -> Manifest:
    """Fill the memory with the model's blocks, and return its manifest."""
    opened = open_checkpoint(checkpoint, DTYPE)
    return opened.manifest([opened.read_block(index, view) for index, view in enumerate(memory)])


@asynccontextmanager
async def always_decoding(manifest: Manifest, memory: Sequence[memoryview]) -> AsyncIterator[EngineAlone]:
    """An engine on these blocks with `REQUESTS` requests under way, one after the other, as long as this lasts."""
    async with engine_over(manifest, memory) as engine, asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(_ask(engine, lane, manifest.config.vocab_size)) for lane in range(REQUESTS)]
        yield engine
        for task in asking:
            task.cancel()


async def _ask(engine: EngineAlone, lane: int, vocab_size: int) -> None:
    """One request after the other, the first shorter in every lane: they should not all begin at the same time."""
    chance = random.Random(lane)
    for number in itertools.count():
        await engine.ask(
            Submit(
                request_id=f"r{lane}-{number}",
                model="bench",
                gateway="none",
                prompt=chance.choices(range(vocab_size), k=PROMPT_TOKENS),
                max_tokens=OUTPUT_TOKENS if number else OUTPUT_TOKENS * (lane + 1) // REQUESTS,
                deadline=NEVER,
            )
        )
