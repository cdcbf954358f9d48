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


@pytest.mark.skipif(find_compiled() is None, reason="kernels were not compiled")
def test_a_forked_process_has_threads_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", FORKING], check=True)
