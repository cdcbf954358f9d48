"""Where a running `livescale up` notes its addresses, so that other commands on this machine find it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """The newest system on this machine. `pid` and `pid_started` (clock ticks since boot) tell whether it lives."""

    pid: int
    pid_started: int
    url: str
    nats_url: str
    namespace: str


def pointer_path() -> Path:
    """In the user's runtime directory where the system has one, else below the working directory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return (
        Path(runtime, "livescale") / "run.json" if Path(runtime).is_dir() and runtime else Path(".livescale/run.json")
    )


def process_started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot, which with the pid is unique; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field, the program's name in parentheses, may itself hold blanks and parentheses.
    return int(stat.rpartition(")")[2].split()[19])


def find_running(path: Path) -> Running | None:
    """What the pointer names, if that process is alive."""
    try:
        running = msgspec.json.decode(path.read_bytes(), type=Running)
    except (OSError, msgspec.MsgspecError):
        return None
    return running if process_started(running.pid) == running.pid_started else None


@contextmanager
def announce(path: Path, *, url: str, nats_url: str, namespace: str) -> Iterator[None]:
    """Write the pointer for the duration; the last system to start is the one that is found."""
    pid = os.getpid()
    mine = Running(pid=pid, pid_started=process_started(pid) or 0, url=url, nats_url=nats_url, namespace=namespace)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(f".{pid}")
    whole.touch(mode=0o600)  # the url of the bus holds the operator's password
    whole.write_bytes(msgspec.json.encode(mine) + b"\n")
    whole.replace(path)
    try:
        yield
    finally:
        if find_running(path) == mine:
            path.unlink(missing_ok=True)
