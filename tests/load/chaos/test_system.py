import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from livescale.load.chaos.system import (
    HANDED_OVER,
    RESUMED,
    TOOK_OFFICE,
    LogEvents,
    find_amiss,
    find_left,
    shared_memory,
)
from livescale.load.story import QueuePoint
from livescale.shared.messages.membership import EngineLoad, Member, ServiceName, WorkerReport, WorkerState
from livescale.shared.messages.parameters import ModelSpec
from livescale.shared.messages.registry import ModelEntry, Snapshot

QUIET = QueuePoint(at=1.0, waiting=0, running=0)
PROCESSES = ["worker-0", "worker-1", "gateway-0"]


def test_events_are_counted_as_lines_pass() -> None:
    lines: list[tuple[str, str]] = []
    events = LogEvents(lambda name, line: lines.append((name, line)))
    events.echo("gateway-0", "2026 [warning  ] request_lost   attempt=1 reason=dead")
    events.echo("router-1", "2026 [info  ] router_takes_office   epoch=7")
    events.echo("router-1", "2026 [info  ] something_else")
    events.echo("worker-1", "2026 [info  ] request_taken   layers=2 of=worker-0")
    assert len(lines) == 4
    assert events.counts == {RESUMED: 1, TOOK_OFFICE: 1, HANDED_OVER: 1}


def worker(id: str, state: WorkerState = "serving", *, requests: int = 0, blocks: int = 0) -> WorkerReport:
    load = EngineLoad(
        waiting_requests=0,
        waiting_tokens=0,
        running_requests=requests,
        max_requests=4,
        kv_blocks_used=blocks,
        kv_blocks_total=9,
        kv_block_tokens=16,
    )
    return WorkerReport(id=id, epoch=1, state=state, model="m", instance="i", load=load)


def member(id: str) -> Member:
    service: ServiceName = "gateway" if id.startswith("gateway") else "worker"
    return Member(service=service, id=id, pid=1, host="h", epoch=1, lease="alive")


def snapshot(*workers: WorkerReport, members: list[str] | None = None) -> Snapshot:
    entry = ModelEntry(spec=ModelSpec(name="m", path="/m", dtype="float32", min_instances=1), state="ready")
    return Snapshot(
        members=[member(id) for id in (PROCESSES if members is None else members)], workers=[*workers], models=[entry]
    )


def test_a_system_at_rest_with_everybody_there_is_whole() -> None:
    assert find_amiss(snapshot(worker("worker-0"), worker("worker-1", "spare")), QUIET, PROCESSES) == []


@pytest.mark.parametrize(
    ("state", "queue", "said"),
    [
        (snapshot(worker("worker-0"), worker("worker-1", "loading")), QUIET, "worker-1 is loading"),
        (snapshot(worker("worker-0")), QUIET, "worker-1 does not report"),
        (snapshot(worker("worker-0"), worker("worker-1"), members=PROCESSES[:2]), QUIET, "gateway-0 is not a member"),
        (snapshot(worker("worker-0"), worker("worker-1", requests=2)), QUIET, "worker-1 has 2 requests"),
        (
            snapshot(worker("worker-0"), worker("worker-1", blocks=3)),
            QUIET,
            "worker-1 holds 3 blocks of its KV cache",
        ),
        (snapshot(worker("worker-0", "spare"), worker("worker-1", "spare")), QUIET, "model m (0 of 1 instances)"),
        (snapshot(worker("worker-0"), worker("worker-1")), None, "no router tells its queue"),
        (
            snapshot(worker("worker-0"), worker("worker-1")),
            QueuePoint(1.0, 0, 2),
            "the router counts 2 requests running",
        ),
    ],
)
def test_what_is_amiss_is_named(state: Snapshot, queue: QueuePoint | None, said: str) -> None:
    assert find_amiss(state, queue, PROCESSES) == [said]


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
    assert {f"process {process.pid}", f"directory {directory}", f"shared memory {name}"} <= set(left)
    assert not [line for line in find_left([process.pid], before) if str(os.getpid()) in line or "process" in line]
