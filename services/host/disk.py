"""Reading files and touching memory, in threads away from the event loop. A simulation brings its own `Disk`."""

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from livescale.services.host.stored import Stored, open_spec
from livescale.shared.memory.arena import Arena, CudaRuntime, SharedBlocks, cuda_runtime, placed_bytes
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Manifest

READS = 4  # threads: some wait for the disk while others check what came
AHEAD = 6  # blocks under way, so that no thread waits for one that takes longer
LEAST_PRIORITY = 19

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


class Disk(Protocol):
    """Where models are stored, and the memory that they are read into. Models are read one after the other."""

    def free_bytes(self) -> int:
        """How many bytes of memory could be allocated now."""

    async def open(self, spec: ModelSpec) -> Stored:
        """Find and check a model's checkpoint. Raises CheckpointError."""

    async def allocate(self, sizes: Sequence[int]) -> list[memoryview]:
        """Touched memory for blocks of these sizes. It is free again when the last view is gone. Raises OSError."""

    def read(self, stored: Stored, blocks: Mapping[int, memoryview]) -> AsyncGenerator[int, None]:
        """Fill these blocks; yields their checksums in order, each as soon as it is known. Raises CheckpointError."""

    async def keep(self, stored: Stored, manifest: Manifest, blocks: Sequence[memoryview]) -> None:
        """Write what was read in the packed form, which is read faster, where that can be done."""

    async def close(self) -> None:
        """Stop all work, and return once nothing is being read or written any more."""


class ThreadDisk:
    """The machine's own disk and memory.

    `keep` and `packed_dir` are as in `open_stored`. `shared` memory may be mapped by other processes; `pinned` memory
    is copied by GPUs without a detour.
    """

    def __init__(self, *, keep: bool = False, packed_dir: str = "", shared: bool = False, pinned: bool = False) -> None:
        self._shared = shared
        self._pinned = pinned
        self._keep = keep
        self._packed_dir = packed_dir
        self._readers = ThreadPoolExecutor(READS, "disk")
        self._opener = ThreadPoolExecutor(1, "open")  # what is asked meanwhile need not wait for a read
        self._packer = ThreadPoolExecutor(1, "pack", initializer=_step_back)
        self._closing = threading.Event()
        self.free_bytes = available_bytes

    async def open(self, spec: ModelSpec) -> Stored:
        def work() -> Stored:
            return open_spec(spec, keep=self._keep, packed_dir=self._packed_dir)

        return await asyncio.get_running_loop().run_in_executor(self._opener, work)

    async def allocate(self, sizes: Sequence[int]) -> list[memoryview]:
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._allocate, sizes)

    def _allocate(self, sizes: Sequence[int]) -> list[memoryview]:
        cuda = cuda_runtime() if self._pinned else None
        return SharedBlocks(sizes, cuda) if self._shared else allocate(sizes, cuda)

    async def read(self, stored: Stored, blocks: Mapping[int, memoryview]) -> AsyncGenerator[int, None]:
        loop = asyncio.get_running_loop()
        reads = deque[asyncio.Future[int]]()
        try:
            for index, block in blocks.items():
                reads.append(loop.run_in_executor(self._readers, stored.read_block, index, block))
                if len(reads) == AHEAD:
                    yield await _first(reads)
            while reads:
                yield await _first(reads)
        finally:
            await asyncio.gather(*reads, return_exceptions=True)  # nothing is read into memory that was given back

    async def keep(self, stored: Stored, manifest: Manifest, blocks: Sequence[memoryview]) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._packer, lambda: stored.keep(manifest, blocks, self._closing.is_set))

    async def close(self) -> None:
        self._closing.set()
        for threads in (self._opener, self._packer, self._readers):
            await asyncio.to_thread(threads.shutdown, cancel_futures=True)


async def _first(reads: deque[asyncio.Future[int]]) -> int:
    """The first read's checksum. It stays in the queue until it is done, so that a cancelled caller can wait for it."""
    checksum = await asyncio.shield(reads[0])
    reads.popleft()
    return checksum


def allocate(sizes: Sequence[int], cuda: CudaRuntime | None = None) -> list[memoryview]:
    """Touched memory of this process alone, each block aligned to pages; pinned where CUDA's runtime is given."""
    return Arena(placed_bytes(sizes), cuda).place(sizes)


def _step_back() -> None:
    """Give this thread the lowest priority. On Linux a thread has its own, and its priority at the disk follows."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_PRIORITY)


def available_bytes(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """How many bytes the kernel could hand out without swapping, within the container's limit where there is one."""
    available = _fields(meminfo.read_text().replace(":", " "))["MemAvailable"] * 1024
    limit = (cgroup / "memory.max").read_text().strip() if (cgroup / "memory.max").exists() else "max"
    if limit == "max":
        return available
    used = int((cgroup / "memory.current").read_text())
    # The kernel counts the pages of files that were read as used until other memory is needed.
    given_up = _fields((cgroup / "memory.stat").read_text()).get("inactive_file", 0)
    return max(0, min(available, int(limit) - used + given_up))


def _fields(text: str) -> dict[str, int]:
    return {name: int(value) for name, value, *_ in map(str.split, text.splitlines())}
