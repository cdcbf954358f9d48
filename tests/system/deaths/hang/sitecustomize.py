"""Python imports this at its start where this directory is in PYTHONPATH: SIGUSR1 then hangs a process's event loop.

Signals are handled on the main thread, between two steps of whatever runs there, which in every process of the
system is the loop.
"""

import os
import signal
import time


def hang(number: int, frame: object) -> None:
    time.sleep(float(os.environ["HANG_SECONDS"]))


signal.signal(signal.SIGUSR1, hang)
