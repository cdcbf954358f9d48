"""What keeps a system from being whole and at rest, by what the registry says: live, and in a simulation. Pure."""

from collections.abc import Sequence

from livescale.load.story import QueuePoint
from livescale.services.supervisor.policy import missing_instances, missing_members
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.registry import Snapshot


def find_amiss(snapshot: Snapshot, queue: QueuePoint | None, processes: Sequence[str]) -> list[str]:
    """What keeps the system from being whole and at rest, one line each."""
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
    """What a worker still does or holds, one line each."""
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
