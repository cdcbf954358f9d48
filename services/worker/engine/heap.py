"""Keeps memory that is freed in this process, and touched.

A page that the kernel gives anew costs 5 to 14 us on virtual machines. In such pages laying parameters out takes eight
times as long, and each step's activations would pay as well. This is glibc's malloc; other ones are left as they are.
"""

import ctypes
import mmap

# Constants of malloc.h. With one arena, memory that one thread freed is reused by another.
TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8
NEVER = -1
HUGE_PAGE = 2 * 1024 * 1024


def keep_freed_memory() -> None:
    """Return no memory to the kernel from now on. Call it before there are threads."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option, value in ((TRIM_THRESHOLD, NEVER), (MMAP_MAX, 0), (ARENA_MAX, 1)):
            libc.mallopt(option, value)
        Heap.is_kept = True


class Heap:
    """Memory that this process keeps at hand, as `keep_freed_memory` says. Without that it would be gone at once."""

    is_kept = False  # by this process, for all of them

    def __init__(self) -> None:
        self._touched = 0

    def have(self, size_bytes: int) -> None:
        """Touch so much, unless as much has been touched. Raises MemoryError where there is less."""
        if self.is_kept and size_bytes > self._touched:
            touch_heap(size_bytes)
            self._touched = size_bytes


def touch_heap(size_bytes: int) -> None:
    """Have `size_bytes` at hand, in huge pages where there are any. Raises MemoryError where there is less."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    memory = libc.malloc(ctypes.c_size_t(size_bytes))
    if memory is None:
        raise MemoryError(f"no {size_bytes} bytes are left to compute in; lower --arena-bytes or --kv-bytes")
    start = -(-memory // HUGE_PAGE) * HUGE_PAGE
    inside = memory + size_bytes - start
    if inside > 0:
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(inside), mmap.MADV_HUGEPAGE)
    ctypes.memset(memory, 0, size_bytes)
    libc.free(ctypes.c_void_p(memory))
