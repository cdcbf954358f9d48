"""Parameters between the memories of GPUs and of the host, over UCX between two processes."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from livescale.shared.links.contract import Buffer, View, checksum
from livescale.shared.links.open import open_link
from livescale.shared.memory.arena import Arena
from livescale.shared.memory.device_arena import DeviceArena
from livescale.shared.runtime.settings import LinkSettings
from tests.cuda.sender_process import SIZE, TAGS, parameters

Process = asyncio.subprocess.Process


@asynccontextmanager
async def sender(memory: str) -> AsyncIterator[Process]:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tests.cuda.sender_process", memory)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def space(memory: str) -> View:
    arena = DeviceArena(SIZE, memory) if memory.startswith("cuda") else Arena(SIZE)
    return arena.place([SIZE])[0]


def halves(view: View) -> list[Buffer]:
    half = SIZE // TAGS
    return [Buffer(view[:half]), Buffer(view[half:])]


async def told(process: Process, word: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(word + b"\n")
    await process.stdin.drain()


@pytest.mark.parametrize(("from_gpu", "to_gpu"), [(True, True), (False, True), (True, False)])
async def test_parameters_arrive_unchanged_by_a_path_that_is_named(
    from_gpu: bool, to_gpu: bool, gpus: tuple[str, str]
) -> None:
    source, target = gpus[0] if from_gpu else "host", gpus[1] if to_gpu else "host"
    view = space(target)
    link = await open_link(LinkSettings(), target)
    async with sender(source) as process:
        assert process.stdout is not None
        address = bytes.fromhex((await asyncio.wait_for(process.stdout.readline(), 120)).decode())
        await told(process, link.address.hex().encode())
        peer = await link.connect(address, timeout=20)
        parts = enumerate(halves(view))
        await asyncio.gather(*(peer.receive(tag, buffer, timeout=60) for tag, buffer in parts))
        await told(process, b"that is all")
        path = peer.path.name
        assert path == "cuda_ipc" if from_gpu and to_gpu else path.startswith("cuda_copy, "), path
        await link.close()
        assert await asyncio.wait_for(process.wait(), 30) == 0
    assert checksum(view) == checksum(parameters().numpy().data)
