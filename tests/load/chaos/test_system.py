import os
import subprocess
import sys
import tempfile
from pathlib import Path

from livescale.load.chaos.system import (
    HANDED_OVER,
    RESUMED,
    TOOK_OFFICE,
    LogEvents,
    find_left,
    shared_memory,
)


def test_events_are_counted_as_lines_pass() -> None:
    lines: list[tuple[str, str]] = []
    events = LogEvents(lambda name, line: lines.append((name, line)))
    events.echo("gateway-0", "2026 [warning  ] request_lost   attempt=1 reason=dead")
    events.echo("router-1", "2026 [info  ] router_takes_office   epoch=7")
    events.echo("router-1", "2026 [info  ] something_else")
    events.echo("worker-1", "2026 [info  ] request_taken   layers=2 of=worker-0")
    assert len(lines) == 4
    assert events.counts == {RESUMED: 1, TOOK_OFFICE: 1, HANDED_OVER: 1}


def test_what_is_left_of_a_system_is_found() -> None:
    before = shared_memory()
    name = f"livescale-test-{os.getpid()}"
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process,
        tempfile.TemporaryDirectory(prefix=f"livescale-{os.getpid()}-") as directory,
    ):
        Path("/dev/shm", name).touch()
        try:
            left = find_left([process.pid], before)
        finally:
            Path("/dev/shm", name).unlink()
        assert process.stdin is not None
        process.stdin.write(b"\n")
    ours = {f"process {process.pid}", f"directory {directory}", f"shared memory {name}"}
    assert ours <= set(left)
    assert not ours & set(find_left([process.pid], before))  # other tests may leave something meanwhile
