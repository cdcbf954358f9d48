"""The host's hands: reading files and touching memory, away from the event loop. A simulation brings its own."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch

from services.host.checkpoint import Checkpoint, open_checkpoint
from shared.arena import ALIGNMENT, Arena
from shared.hub import resolve_model_path
from shared.messages.parameters import DType

T = TypeVar("T")


class Disk(Protocol):
    """Where checkpoints are, and the memory that they are read into. One operation at a time."""

    async def open(self, path: str, dtype: DType) -> Checkpoint:
        """Find and check a checkpoint. Raises CheckpointError."""

    async def allocate(self, sizes: Sequence[int]) -> list[memoryview]:
        """Touched memory for so many blocks, free again when the last view is gone. Raises OSError."""

    async def read_block(self, checkpoint: Checkpoint, index: int, into: memoryview) -> int:
        """Read a block; its checksum. Raises CheckpointError."""

    async def close(self) -> None:
        """Return once nothing is being read any more."""


class ThreadDisk:
    """The machine's disk, read by one thread: a model after the other is sooner there than two at once."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "disk", initializer=torch.set_num_threads, initargs=(1,))

    async def open(self, path: str, dtype: DType) -> Checkpoint:
        return await self._run(lambda: open_checkpoint(resolve_model_path(path), dtype))

    async def allocate(self, sizes: Sequence[int]) -> list[memoryview]:
        pages = sum(-(-size // ALIGNMENT) for size in sizes)
        return await self._run(lambda: Arena(pages * ALIGNMENT).place(sizes))

    async def read_block(self, checkpoint: Checkpoint, index: int, into: memoryview) -> int:
        return await self._run(lambda: checkpoint.read_block(index, into))

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
