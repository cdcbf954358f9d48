"""A process with parameters in some memory: says its address, connects back, sends them, and waits to be ended."""

import asyncio
import sys

import torch

from livescale.shared.links.contract import Buffer, View
from livescale.shared.links.open import open_link
from livescale.shared.memory.arena import Arena
from livescale.shared.memory.device_arena import DeviceArena
from livescale.shared.runtime.settings import LinkSettings

SIZE = 40_000_003
TAGS = 2


def parameters() -> torch.Tensor:
    """The same in every process."""
    return torch.randint(256, (SIZE,), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))


def held(memory: str) -> View:
    if memory.startswith("cuda"):
        (block,) = DeviceArena(SIZE, memory).place([SIZE])
        block.tensor.copy_(parameters())
        return block
    (view,) = Arena(SIZE).place([SIZE])
    view[:] = parameters().numpy().data
    return view


async def run(memory: str) -> None:
    view = held(memory)
    link = await open_link(LinkSettings(), memory)
    sys.stdout.write(link.address.hex() + "\n")
    sys.stdout.flush()
    peer = await link.connect(bytes.fromhex(sys.stdin.readline()), timeout=20)
    half = SIZE // TAGS
    for tag in range(TAGS):
        part = view[tag * half : (tag + 1) * half if tag + 1 < TAGS else SIZE]
        await peer.send(tag, Buffer(part), timeout=60)
    await asyncio.to_thread(sys.stdin.readline)
    await link.close()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
