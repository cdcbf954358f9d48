"""The arena: memory for parameters, made and touched at process start, never given back before the end.

The first touch of fresh memory is 20 times slower than the transfer that would fill it. It is locked where this process
may lock so much, as the first request after a rest would wait for what was swapped out. Memory of the host can be
pinned: CUDA knows it, it stays where it is, and GPUs copy from it without a detour.
"""

import ctypes
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import structlog

PORTABLE = 1  # cudaHostRegisterPortable: for every GPU

ALIGNMENT = 4096
MADV_POPULATE_WRITE = 23  # Linux 5.14; not in Python's mmap module

log = structlog.get_logger()


class CudaRuntime(Protocol):
    """What pinning takes of CUDA's runtime. Both return 0 where it worked."""

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int, /) -> int: ...

    def cudaHostUnregister(self, address: int, /) -> int: ...


def cuda_runtime() -> CudaRuntime:
    """Import torch, and return CUDA's runtime as torch has it."""
    import torch  # slow to import, and of no use where there is no GPU

    runtime: CudaRuntime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    return runtime


class PinnedMap(mmap.mmap):
    """A mapping that can be locked, and pinned once all of its pages are there. CUDA lets go of it before it is
    unmapped."""

    _runtime: CudaRuntime | None = None  # once it knows this memory

    def lock(self) -> None:
        """Keep the pages in memory until they are unmapped. Where the limit of locked memory is lower, the kernel may
        swap them out as any others, and that is logged."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mlock(ctypes.c_void_p(self._address()), ctypes.c_size_t(len(self))):
            log.debug("memory_not_locked", size_bytes=len(self), reason=os.strerror(ctypes.get_errno()))

    def pin(self, runtime: CudaRuntime) -> None:
        """Pin the memory. Where that fails it works unpinned, and a warning is logged."""
        status = int(runtime.cudaHostRegister(self._address(), len(self), PORTABLE))
        if status:
            log.warning("memory_not_pinned", size_bytes=len(self), status=status)
        else:
            self._runtime = runtime

    def __del__(self) -> None:
        if self._runtime is not None:
            self._runtime.cudaHostUnregister(self._address())

    def _address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self))


class ArenaFull(Exception):
    """A model needs more memory than the arena has left."""


class BumpAllocator:
    """Allocates blocks in `size_bytes` of memory: one after the other, aligned to pages, and forgotten together."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0

    def take(self, sizes: Sequence[int]) -> list[slice]:
        """Allocate a stretch for each block. Raises ArenaFull, and then allocates nothing."""
        needed = placed_bytes(sizes)
        left = self.size_bytes - self.used_bytes
        if needed > left:
            raise ArenaFull(
                f"the model needs {needed} bytes and the arena has {left} of {self.size_bytes} left; "
                "start this process with a larger --arena-bytes"
            )
        taken = []
        for size in sizes:
            taken.append(slice(self.used_bytes, self.used_bytes + size))
            self.used_bytes += _aligned(size)
        return taken


class Arena:
    """One buffer of the host's memory, of `size_bytes`; pinned where CUDA's runtime is given."""

    def __init__(self, size_bytes: int, cuda: CudaRuntime | None = None) -> None:
        self._memory = PinnedMap(-1, max(size_bytes, ALIGNMENT), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_HUGEPAGE)
        touch(self._memory)
        self._memory.lock()
        if cuda is not None:
            self._memory.pin(cuda)
        self._allocator = BumpAllocator(size_bytes)

    @property
    def used_bytes(self) -> int:
        return self._allocator.used_bytes

    def place(self, sizes: Sequence[int]) -> list[memoryview]:
        """Allocate a writable view for each block, aligned to pages. Raises ArenaFull, and then allocates nothing."""
        return [memoryview(self._memory)[place] for place in self._allocator.take(sizes)]

    def clear(self) -> None:
        """Forget what was placed; the views still work, and share their memory with whatever is placed next."""
        self._allocator.used_bytes = 0

    def close(self) -> None:
        """Unmap the memory, or let the last view that is still in use do so."""
        with suppress(BufferError):
            self._memory.close()


def placed_bytes(sizes: Sequence[int]) -> int:
    """The bytes that blocks of these sizes take in an arena, gaps included."""
    return sum(_aligned(size) for size in sizes)


def touch(memory: mmap.mmap) -> None:
    """Have the kernel give all pages of `memory` now."""
    try:
        memory.madvise(MADV_POPULATE_WRITE)
    except OSError:  # an older kernel: write one byte of each page
        for offset in range(0, len(memory), ALIGNMENT):
            memory[offset] = 0


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
