"""The threads of the kernels."""

import subprocess
import sys

import pytest

from livescale.services.worker.engine.kernels.variants import find_compiled

# Threads that have nothing to do sleep after some 50 us.
FORKING = """
import os, signal, sys, time
from array import array
from livescale.services.worker.engine.kernels.variants import open_variant

kernels, numbers = open_variant("portable", threads=3), array("f", [1.0] * 4096)
address = numbers.buffer_info()[0]

def work():
    for _ in range(20):
        kernels.gelu(1, address, address, 64, 64)
        time.sleep(0.005)

work()
child = os.fork()
signal.alarm(30)  # a process that waits for threads of another one waits forever
work()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

# The handler of the first signal is libc's own `pause`: a thread that gets it stands still until a signal comes that
# has another handler.
STOPPING = r"""
import ctypes, os, signal
from array import array
from livescale.services.worker.engine.kernels.variants import open_variant

libc = ctypes.CDLL(None)
libc.signal(signal.SIGUSR1, libc.pause)
libc.signal(signal.SIGUSR2, libc.getpid)
kernels = open_variant("portable", threads=3)
mine = set(os.listdir("/proc/self/task"))

def wait_for(thread, status):
    while status not in open(f"/proc/self/task/{thread}/status").read():
        pass

def results():
    numbers = array("f", [float(number) for number in range(4096)])
    kernels.gelu(1, numbers.buffer_info()[0], numbers.buffer_info()[0], 64, 64)
    return numbers

before = results()
threads = {int(thread) for thread in set(os.listdir("/proc/self/task")) - mine}
assert len(threads) == 2, threads
signal.alarm(30)  # a process that waits for a thread that stands still waits forever
for thread in threads:
    wait_for(thread, "State:\tS")  # awake, it may hold the lock of all
    assert libc.tgkill(os.getpid(), thread, signal.SIGUSR1) == 0
    wait_for(thread, "SigBlk:\t0000000000000200")  # it is in the handler
assert results() == before
for thread in threads:
    assert libc.tgkill(os.getpid(), thread, signal.SIGUSR2) == 0
assert all(results() == before for _ in range(1000))
"""


@pytest.mark.skipif(find_compiled() is None, reason="kernels were not compiled")
def test_a_thread_that_gets_no_core_keeps_nobody_waiting() -> None:
    subprocess.run([sys.executable, "-c", STOPPING], check=True)


@pytest.mark.skipif(find_compiled() is None, reason="kernels were not compiled")
def test_a_forked_process_has_threads_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", FORKING], check=True)
