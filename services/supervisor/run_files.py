"""What a running system has on this machine: a note of its addresses, and a directory of its own.

By the note other commands on the machine find the system. The directory is made at the start, is gone at the end, and
after a SIGKILL it is cleared by the next start.
"""

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from livescale.shared.runtime.files import write_atomically

# With pid and start, so that another process of that pid is told apart.
DIRECTORY_NAME = re.compile(r"livescale-(\d+)-(\d+)-.*")


class RunningSystem(msgspec.Struct, frozen=True, kw_only=True):
    """The note of the newest system on this machine.

    `pid` and `pid_started`, in clock ticks since boot, tell whether it still runs. `before` was there at its start: it
    is found again once this one has ended.
    """

    pid: int
    pid_started: int
    url: str
    nats_url: str
    namespace: str
    before: "RunningSystem | None" = None


class NotOurs(Exception):
    """Another user could write where the note belongs; the message says where."""


def pointer_path() -> Path:
    """The path of the note: the same for all of a user's terminals and folders.

    It depends on few variables, as shells by ssh, sudo or cron lack those that others have. LIVESCALE_STATE_DIR names
    another directory.
    """
    return Path(os.environ.get("LIVESCALE_STATE_DIR") or f"/tmp/livescale-{os.getuid()}", "run.json")


def process_started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none. With the pid it is unique."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field, the program's name in parentheses, may itself hold blanks and parentheses.
    return int(line.rpartition(")")[2].split()[19])


def find_running(path: Path) -> RunningSystem | None:
    """The newest system that the note at `path` names and whose process is alive."""
    try:
        if path.stat().st_uid != os.getuid():
            return None  # another user's bus could command this one's processes
        running: RunningSystem | None = msgspec.json.decode(path.read_bytes(), type=RunningSystem)
    except (OSError, msgspec.MsgspecError):
        return None
    while running is not None and process_started(running.pid) != running.pid_started:
        running = running.before
    return running


@contextmanager
def announce(path: Path, *, url: str, nats_url: str, namespace: str) -> Iterator[None]:
    """Write the note; at the end it names the system before, or is removed. The last system to start is the one that
    is found. Raises NotOurs."""
    pid = os.getpid()
    make_place(path)
    mine = RunningSystem(
        pid=pid,
        pid_started=process_started(pid) or 0,
        url=url,
        nats_url=nats_url,
        namespace=namespace,
        before=find_running(path),
    )
    write_note(path, mine)
    try:
        yield
    finally:
        if find_running(path) == mine:
            if mine.before is None:
                path.unlink(missing_ok=True)
            else:
                write_note(path, mine.before)


def write_note(path: Path, system: RunningSystem) -> None:
    """Write it for its owner alone, as the url of the bus holds the operator's password."""
    write_atomically(path, msgspec.json.encode(system) + b"\n")


def make_place(path: Path) -> None:
    """Make the directory of the note. Raises NotOurs where another user owns it or may write to it."""
    directory = path.parent
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise NotOurs(
            f"{directory} is not a directory that only you can write to, so other commands would not find this system "
            "there: remove it, or name another one by LIVESCALE_STATE_DIR"
        )


@contextmanager
def run_directory(parent: Path | None = None) -> Iterator[Path]:
    """A fresh directory that only its owner can read, below `parent`, by default the system's for temporary files."""
    parent = parent or Path(tempfile.gettempdir())
    clear_abandoned(parent)
    pid = os.getpid()
    prefix = f"livescale-{pid}-{process_started(pid) or 0}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def clear_abandoned(parent: Path) -> None:
    """Remove the directories of runs that were killed, but not those of other users."""
    for directory in parent.glob("livescale-*"):
        named = DIRECTORY_NAME.fullmatch(directory.name)
        if named and process_started(int(named[1])) != int(named[2]) and directory.lstat().st_uid == os.getuid():
            shutil.rmtree(directory, ignore_errors=True)
