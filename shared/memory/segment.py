"""A copy of a model that other processes of this machine may map instead of receiving it: blocks in a memfd.

It is sealed: only its maker can write to it, and its size stays. A process that maps it gets pages of its own where it
writes. The memory is free again when the last view and the last descriptor of it are gone, in whatever process.
"""

import fcntl
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence

from livescale.shared.memory.arena import ALIGNMENT, CudaRuntime, PinnedMap, touch

F_SEAL_FUTURE_WRITE = 0x10  # Linux 5.1; not in Python's fcntl module
SEALS = F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
NAME = "livescale"

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
            end += -(-size // ALIGNMENT) * ALIGNMENT
        descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
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
