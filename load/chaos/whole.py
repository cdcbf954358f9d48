"""Whether a system is whole again: everybody there, nothing under way or held. And what it leaves at its end."""

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from livescale.load.story import QueuePoint
from livescale.services.supervisor.policy import missing_instances, missing_members
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.registry import Snapshot

SHARED_MEMORY = Path("/dev/shm")


def find_amiss(snapshot: Snapshot, queue: QueuePoint | None, processes: Sequence[str]) -> list[str]:
    """What keeps the system from being whole and at rest, one line each. Pure."""
    reports = {report.id: report for report in snapshot.workers}
    workers = [name for name in processes if name.startswith("worker-")]
    return [
        *(f"{id} is not a member" for id in missing_members(snapshot, processes)),
        *(f"{id} does not report" for id in workers if id not in reports),
        *missing_instances(snapshot, [model.spec for model in snapshot.models]),
        *([] if snapshot.models else ["no model is registered"]),
        *(line for report in reports.values() for line in find_unrest(report)),
        *(f"{host.id} still sends parameters" for host in snapshot.hosts if host.flows_out),
        *find_waiting(queue),
    ]


def find_unrest(report: WorkerReport) -> list[str]:
    """What a worker still does or holds."""
    load = report.load
    requests = 0 if load is None else load.running_requests + load.waiting_requests
    blocks = 0 if load is None else load.kv_blocks_used
    return [
        *([] if report.state in ("serving", "spare") else [f"{report.id} is {report.state}"]),
        *([f"{report.id} has {requests} requests"] if requests else []),
        *([f"{report.id} holds {blocks} blocks of its KV cache"] if blocks else []),
        *([f"{report.id} still sends parameters"] if report.flows_out else []),
    ]


def find_waiting(queue: QueuePoint | None) -> list[str]:
    if queue is None:
        return ["no router tells its queue"]
    counts = ((queue.waiting, "waiting"), (queue.running, "running"))
    return [f"the router counts {number} requests {what}" for number, what in counts if number]


def shared_memory() -> set[str]:
    """Names in /dev/shm."""
    return {path.name for path in SHARED_MEMORY.iterdir()}


def find_left(pids: Iterable[int], memory_before: set[str]) -> list[str]:
    """What is left of a system of this process after its end, one line each. `pids` were its processes', each the
    leader of a session."""
    directories = Path(tempfile.gettempdir()).glob(f"livescale-{os.getpid()}-*")
    return [
        *(f"process {pid}" for pid in processes_of(set(pids))),
        *(f"directory {path}" for path in sorted(directories)),
        # Other programs come and go there: what nobody has open is left.
        *(f"shared memory {name}" for name in sorted(shared_memory() - memory_before - mapped())),
    ]


def processes_of(sessions: set[int]) -> list[int]:
    return [pid for pid in all_pids() if session_of(pid) in sessions]


def all_pids() -> list[int]:
    return sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def mapped() -> set[str]:
    """Names in /dev/shm that some process has mapped, as far as this user may see."""
    prefix = f"{SHARED_MEMORY}/"
    found: set[str] = set()
    for pid in all_pids():
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except OSError:
            continue
        found |= {line.partition(prefix)[2] for line in lines if prefix in line}
    return found
