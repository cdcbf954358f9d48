"""A system is at rest, or what it still does is named."""

import pytest

from livescale.load.amiss import find_amiss
from livescale.load.story import QueuePoint
from livescale.shared.messages.membership import EngineLoad, Member, ServiceName, WorkerReport, WorkerState
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry, Snapshot

QUIET = QueuePoint(at=1.0, waiting=0, running=0)
PROCESSES = ["worker-0", "worker-1", "gateway-0"]


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
