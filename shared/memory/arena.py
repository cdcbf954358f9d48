"""Memory of the host for parameters: an arena, made and touched at process start and never given back before the end,
or a copy of one model that other processes of this machine may map instead of receiving it: blocks in a memfd.

The first touch of fresh memory is 20 times slower than the transfer that would fill it. An arena is locked where this
process may lock so much, as the first request after a rest would wait for what was swapped out. Both can be pinned:
CUDA knows the memory, it stays where it is, and GPUs copy from it without a detour.

A memfd is sealed: only its maker can write to it, and its size stays. A process that maps it gets pages of its own
where it writes. The memory is free again when the last view and the last descriptor of it are gone, in whatever
process.
"""

import ctypes
import fcntl
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import structlog

PORTABLE = 1  # cudaHostRegisterPortable: for every GPU

ALIGNMENT = 4096
MADV_POPULATE_WRITE = 23  # Linux 5.14; not in Python's mmap module
F_SEAL_FUTURE_WRITE = 0x10  # Linux 5.1; not in Python's fcntl module
SEALS = F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
SEGMENT_NAME = "livescale"

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


Spans = Mapping[int, tuple[int, int]]  # block -> offset and size in bytes


class Segment:
    """Blocks in the memfd `descriptor`, which this object owns and closes."""

    def __init__(self, descriptor: int, spans: Spans) -> None:
        """Raises ValueError where others could write to the memory, or it is too small for `spans`."""
        weakref.finalize(self, os.close, descriptor)
        self.descriptor = descriptor
        self.spans = spans
        self._check()

    def _check(self) -> None:
        try:
            seals = fcntl.fcntl(self.descriptor, fcntl.F_GET_SEALS)
        except OSError as error:
            raise ValueError("the memory that was handed over is no memfd") from error
        if seals & SEALS != SEALS:
            raise ValueError(f"the memory that was handed over has seals {seals:#x}, not {SEALS:#x}")
        size_bytes = os.fstat(self.descriptor).st_size
        if any(offset + size > size_bytes for offset, size in self.spans.values()):
            raise ValueError(f"the memory that was handed over has {size_bytes} bytes and should hold more")

    @property
    def identity(self) -> tuple[int, int]:
        """Identifies the memory: equal for all descriptors of it."""
        status = os.fstat(self.descriptor)
        return status.st_dev, status.st_ino

    def views(self) -> dict[int, memoryview]:
        """Map the memory: a view of each block, by its index. Writes stay in this process. Raises OSError."""
        mapping = memoryview(mmap.mmap(self.descriptor, 0, access=mmap.ACCESS_COPY))
        return {block: mapping[offset : offset + size] for block, (offset, size) in self.spans.items()}

    def only(self, blocks: Iterable[int]) -> "Segment":
        """A segment of the same memory that has only these blocks."""
        return Segment(os.dup(self.descriptor), {block: self.spans[block] for block in blocks})


class SharedBlocks(list[memoryview]):
    """A view for each block of memory that may be handed over as `segment`. Only this process can write to it."""

    def __init__(self, sizes: Sequence[int], cuda: CudaRuntime | None = None) -> None:
        """Allocate touched memory, aligned to pages, and pin it where CUDA's runtime is given. Raises OSError."""
        spans, end = dict[int, tuple[int, int]](), 0
        for block, size in enumerate(sizes):
            spans[block] = end, size
            end += _aligned(size)
        descriptor = os.memfd_create(SEGMENT_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, end)
            mapping = PinnedMap(descriptor, end)
            touch(mapping)
            if cuda is not None:
                mapping.pin(cuda)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        except OSError:
            os.close(descriptor)
            raise
        super().__init__(memoryview(mapping)[offset : offset + size] for offset, size in spans.values())
        self.segment = Segment(descriptor, spans)


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
