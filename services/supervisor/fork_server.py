"""A process that has imported the services' code and forks: `python -m ...fork_server FD ROOM MODULE...`.

A service that is forked from it starts in some hundredths of a second, where its imports alone take one to three
seconds, and shares the memory of what was imported. Over the socket FD it is asked for one process after the other, and
answers with its pid, or with 0 if it could not be had. Whoever asks is the parent of the process, not this one, so that
nobody dies with it. ROOM is blank: the name under which a forked process is listed needs room among the arguments.

It must have one thread only, as a fork copies no other.
"""

import atexit
import ctypes
import gc
import importlib
import os
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

import msgspec

from livescale.services.supervisor.child import bind_to_parent

MOST_BYTES = 1 << 18
NOT_FORKED = b"0"
ADOPTION_SECONDS = 5.0
ARGUMENTS_START, ARGUMENTS_END = 45, 46  # among the fields of /proc/self/stat behind the program's name


class ForkRequest(msgspec.Struct, frozen=True):
    """What a forked process is to run, as `python -m argv[0]` with the other words as arguments. The descriptor that
    comes with it is for the process's output."""

    argv: tuple[str, ...]
    env: dict[str, str]
    nice: int


def main(fd: int, modules: list[str]) -> None:
    """Import the modules, then serve until the socket is closed. In each forked process it returns from serving, and
    runs what was asked for."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("what was imported has started threads")
    gc.freeze()  # what is here stays, and looking through it would copy the pages that are shared
    with socket.socket(fileno=fd) as asked:
        request = serve(asked)
    if request is not None:
        run(request)


def serve(asked: socket.socket) -> ForkRequest | None:
    """Fork for each request; returns it in the forked process, and None in this one at the end."""
    supervisor = os.getppid()
    while True:
        body, outputs, _, _ = socket.recv_fds(asked, MOST_BYTES, 1)
        if not body:
            return None
        request = msgspec.json.decode(body, type=ForkRequest)
        ready, tell = os.pipe()
        between = os.fork()
        if between == 0:
            if os.fork() != 0:
                os._exit(0)  # its child is adopted by the supervisor
            settle(request, outputs[0], supervisor)
            os.write(tell, str(os.getpid()).encode())
            for each in (ready, tell, outputs[0]):
                os.close(each)
            return request
        os.close(tell)
        os.close(outputs[0])
        os.waitpid(between, 0)
        with open(ready, "rb") as told:
            asked.send(told.read() or NOT_FORKED)


def settle(request: ForkRequest, output: int, supervisor: int) -> None:
    """Make this process one of its own: session, parent, priority, output, environment, name."""
    os.setsid()
    deadline = time.monotonic() + ADOPTION_SECONDS
    while os.getppid() != supervisor and time.monotonic() < deadline:
        time.sleep(0.0005)  # until the process between has ended
    bind_to_parent(supervisor)
    os.nice(request.nice)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(request.env)
    sys.argv = list(request.argv)
    with suppress(OSError, ValueError):  # a system that hides these addresses lists it under the server's name
        rename((sys.executable, "-m", *request.argv))


def rename(argv: tuple[str, ...]) -> None:
    """Have this process listed with these arguments, as far as there is room."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[ARGUMENTS_START]), int(fields[ARGUMENTS_END])
    if start:
        listed = b"\0".join(os.fsencode(word) for word in argv)[: end - start - 1]
        ctypes.memmove(start, listed.ljust(end - start, b"\0"), end - start)


def run(request: ForkRequest) -> None:
    """Run the `main` of the module that was asked for, as a process of its own would, but for its end: to take apart
    what is shared would first copy it."""
    gc.enable()
    code: object = 0
    try:
        importlib.import_module(request.argv[0]).main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 as the interpreter's end would
        traceback.print_exc()
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)  # noqa: T201 as sys.exit() does
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[3:])
