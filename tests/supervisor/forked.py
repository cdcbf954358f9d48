"""A program that tells what it is, and stays: run by itself, or forked from a process that has imported it."""

import json
import os
import sys
import time
from pathlib import Path

IMPORTED_BY = os.getpid()


def main() -> None:
    match sys.argv[1:]:
        case ["ends", code]:
            sys.exit(int(code))
        case ["says", text]:
            sys.exit(text)
        case ["fails"]:
            raise ValueError("on purpose")
    told = {
        "words": sys.argv[1:],
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "nice": os.nice(0),
        "key": os.environ.get("KEY"),
        "imported": os.getpid() != IMPORTED_BY,
        "listed": Path("/proc/self/cmdline").read_text().rstrip("\0").split("\0"),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    time.sleep(60)


if __name__ == "__main__":
    main()
