"""Where a running `livescale up` notes its addresses, so that other commands on this machine find it."""

import os
import stat
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


class NotOurs(Exception):
    """Somebody else could write where the note belongs; says where."""


def pointer_path() -> Path:
    """One place for all of a user's terminals and folders, whatever their environment: sessions by ssh, sudo or cron
    lack the variables that others have. LIVESCALE_STATE_DIR names another one."""
    return Path(os.environ.get("LIVESCALE_STATE_DIR") or f"/tmp/livescale-{os.getuid()}", "run.json")


def process_started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot, which with the pid is unique; None if there is none."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field, the program's name in parentheses, may itself hold blanks and parentheses.
    return int(line.rpartition(")")[2].split()[19])


def find_running(path: Path) -> Running | None:
    """What the pointer names, if that process is alive."""
    try:
        if path.stat().st_uid != os.getuid():
            return None  # whoever commands the bus commands us
        running = msgspec.json.decode(path.read_bytes(), type=Running)
    except (OSError, msgspec.MsgspecError):
        return None
    return running if process_started(running.pid) == running.pid_started else None


@contextmanager
def announce(path: Path, *, url: str, nats_url: str, namespace: str) -> Iterator[None]:
    """Write the pointer for the duration; the last system to start is the one that is found. Raises NotOurs."""
    pid = os.getpid()
    mine = Running(pid=pid, pid_started=process_started(pid) or 0, url=url, nats_url=nats_url, namespace=namespace)
    make_place(path)
    whole = path.with_suffix(f".{pid}")
    whole.touch(mode=0o600)  # the url of the bus holds the operator's password
    whole.write_bytes(msgspec.json.encode(mine) + b"\n")
    whole.replace(path)
    try:
        yield
    finally:
        if find_running(path) == mine:
            path.unlink(missing_ok=True)


def make_place(path: Path) -> None:
    """For the pointer. In a folder for everybody's files another user may have been first. Raises NotOurs."""
    directory = path.parent
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NotOurs(
            f"{directory} is not a directory that only you can write to, so other commands would not find this system "
            "there: remove it, or name another one by LIVESCALE_STATE_DIR"
        )
