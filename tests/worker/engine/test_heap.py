"""What is computed in is touched before: in a process of its own, as it is for good."""

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, resource, threading
from livescale.services.worker.engine.heap import Heap, keep_freed_memory

MIB, PAGE = 1 << 20, 4096
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
keep_freed_memory()
heap = Heap()
for size in (8, 256, 256, 16):
    heap.have(size * MIB)

def use():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        taken = [libc.malloc(ctypes.c_size_t(48 * MIB)) for _ in range(5)]
        for memory in taken:
            ctypes.memset(memory, 1, 48 * MIB)
        print((resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before) * PAGE // MIB)
        for memory in taken:
            libc.free(ctypes.c_void_p(memory))

thread = threading.Thread(target=use)
thread.start()
thread.join()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_another_thread_gets_memory_that_is_touched_and_gets_it_again_after_freeing_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=240)
    first, again = map(int, done.stdout.split())
    assert first < 24  # of 240 MiB
    assert again < 24
