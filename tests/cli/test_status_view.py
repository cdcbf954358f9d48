"""The rows of `livescale status`."""

from msgspec.structs import replace

from livescale.services.cli.status_view import live_rows, make_status
from livescale.shared.messages.membership import (
    EngineLoad,
    Holding,
    Member,
    QueueLoad,
    ServiceName,
    WorkerReport,
    WorkerState,
)
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry, Snapshot
from livescale.shared.model.latency import MADE_UP


def worker(id: str, state: WorkerState = "spare", instance: str | None = None, rank: int = 0) -> WorkerReport:
    holding = Holding(model="tiny", version="v", ready=[0, 2], total=4) if instance else None
    return WorkerReport(
        id=id,
        epoch=1,
        state=state,
        model="tiny" if instance else None,
        instance=instance,
        rank=rank,
        role="colocated" if instance else None,
        holding=holding,
    )


def test_a_worker_is_shown_with_its_process_and_its_blocks() -> None:
    member = Member(service="worker", id="worker-0", pid=17, host="h1", epoch=1, lease="alive", place="h1/3")
    snapshot = Snapshot(members=[member], workers=[worker("worker-0", "loading", "i-1")])
    (row,) = make_status(snapshot, []).workers
    assert (row.pid, row.host, row.place, row.state, row.ready, row.total) == (17, "h1", "h1/3", "loading", 2, 4)


def test_a_spare_holds_nothing_and_a_worker_without_member_has_no_pid() -> None:
    (row,) = make_status(Snapshot(workers=[worker("worker-0")]), []).workers
    assert (row.pid, row.model, row.instance, row.ready, row.total) == (None, None, None, 0, 0)


def test_live_workers_are_shown_with_their_layers_and_queue_and_who_helps_them() -> None:
    live = replace(worker("worker-1", "live", "i-1"), live_layers=2, live_waiting=5)
    snapshot = Snapshot(workers=[replace(worker("worker-0"), helping=["worker-1"]), live])
    found = [(row.live_layers, row.live_queue, row.helping) for row in make_status(snapshot, []).workers]
    assert found == [(0, 0, ["worker-1"]), (2, 5, [])]


def test_what_a_worker_was_while_it_loaded_is_told_no_more_once_it_serves() -> None:
    served = replace(worker("worker-1", "serving", "i-1"), live_layers=4, live_waiting=1)
    (row,) = make_status(Snapshot(workers=[served]), []).workers
    assert (row.live_layers, row.live_queue) == (0, 0)


def test_an_instance_is_shown_with_its_role_and_the_kv_that_goes_and_comes() -> None:
    kept = EngineLoad(
        waiting_requests=0,
        waiting_tokens=0,
        running_requests=1,
        max_requests=4,
        kv_blocks_used=9,
        kv_blocks_total=10,
        kv_block_tokens=16,
        reserved_requests=2,
        reserved_blocks=7,
    )
    prefill = replace(worker("worker-0", "serving", "i-0"), role="prefill", sending_kv=2)
    decode = replace(worker("worker-1", "serving", "i-1"), role="decode", load=kept)
    rows = make_status(Snapshot(workers=[prefill, decode]), []).instances
    assert [(row.role, row.sends_kv_of, row.keeps_blocks) for row in rows] == [("prefill", 2, 0), ("decode", 0, 7)]


def test_a_worker_of_a_pipeline_is_shown_with_its_stage() -> None:
    leader = replace(worker("worker-0", "live", "i-0"), pipeline="scale-1-0", stage="0-2", live_layers=2)
    follower = replace(worker("worker-1", "loading", "i-1"), pipeline="scale-1-0", stage="3-5", live_layers=3)
    status = make_status(Snapshot(workers=[leader, follower]), [])
    assert [(row.pipeline, row.stage) for row in status.workers] == [("scale-1-0", "0-2"), ("scale-1-0", "3-5")]
    assert [row.runs for row in status.live] == ["blocks 0-2 of scale-1-0", "blocks 3-5 of scale-1-0"]


def test_a_worker_is_shown_with_its_device_and_the_paths_by_which_parameters_came() -> None:
    report = replace(worker("worker-0"), device="cuda:1", paths={"host-0": "cuda_copy, cma"})
    (row,) = make_status(Snapshot(workers=[report]), []).workers
    assert (row.device, row.paths) == ("cuda:1", {"host-0": "cuda_copy, cma"})


def test_modelled_engines_are_pointed_out() -> None:
    modelled = replace(worker("worker-1"), engine="modelled")
    assert make_status(Snapshot(workers=[worker("worker-0")]), []).warning is None
    found = make_status(Snapshot(workers=[worker("worker-0"), modelled]), [])
    assert [row.engine for row in found.workers] == ["torch", "modelled"]
    assert found.warning == MADE_UP


def test_an_instance_is_as_far_as_its_slowest_rank() -> None:
    workers = [worker("worker-1", "serving", "i-1", rank=0), worker("worker-0", "loading", "i-1", rank=1)]
    (row,) = make_status(Snapshot(workers=workers), []).instances
    assert (row.id, row.model, row.state, row.workers) == ("i-1", "tiny", "loading", ["worker-1", "worker-0"])


def test_rows_come_in_the_order_of_their_names() -> None:
    named: list[tuple[ServiceName, str]] = [("worker", "worker-1"), ("gateway", "gateway-0"), ("worker", "worker-0")]
    members = [Member(service=service, id=id, pid=1, host="h", epoch=1, lease="alive") for service, id in named]
    models = [ModelEntry(spec=ModelSpec(name=name, path="/m"), state="ready") for name in "ba"]
    status = make_status(Snapshot(members=members, models=models), [])
    assert [row.id for row in status.processes] == ["gateway-0", "worker-0", "worker-1"]
    assert [row.name for row in status.models] == ["a", "b"]


def test_queues_that_nobody_reported_are_unknown_and_not_empty() -> None:
    assert make_status(Snapshot(), None).queues is None
    load = QueueLoad(model="tiny", waiting_requests=2, waiting_tokens=90, oldest_seconds=0.5, running=3)
    (row,) = make_status(Snapshot(), [load], []).queues or []
    assert row.scaling is None
    assert (row.waiting_requests, row.waiting_tokens, row.oldest_seconds, row.running) == (2, 90, 0.5, 3)


def live_worker(id: str, state: WorkerState, blocks: int = 14, **more: object) -> WorkerReport:
    """A live worker of a model with 12 layers."""
    holding = Holding(model="m", version="v", ready=list(range(blocks)), total=14)
    return replace(WorkerReport(id=id, epoch=1, state=state, model="m", instance=f"i-{id}", holding=holding), **more)


def test_it_is_shown_which_layers_a_live_worker_runs_and_who_runs_the_rest() -> None:
    live = live_worker("worker-2", "live", 6, live_layers=5, live_waiting=3, handed_over={"worker-0": 7})
    helpers = [live_worker(id, "serving", helping=["worker-2"]) for id in ("worker-1", "worker-0")]
    [row] = live_rows([live, *helpers])
    assert (row.worker, row.state, row.ready, row.layers, row.runs) == ("worker-2", "live", 5, 12, "1-5")
    assert (row.waiting, row.helped_by, row.helpers_run) == (3, ["worker-0", "worker-1"], "the rest, to 12")
    assert row.handed_over == {"worker-0": 7}


def test_the_head_is_no_layer_and_who_is_whole_runs_all() -> None:
    [row] = live_rows([live_worker("a", "live", 14, live_layers=13)])
    assert (row.ready, row.runs, row.helped_by, row.helpers_run) == (12, "1-12", [], "")
    [row] = live_rows([live_worker("a", "serving", handed_over={"b": 2})])
    assert (row.ready, row.runs) == (12, "1-12")


def test_a_target_that_is_helped_before_its_first_layer_runs_none_yet() -> None:
    [row] = live_rows([live_worker("a", "loading", 1), live_worker("b", "serving", helping=["a"])])
    assert (row.worker, row.ready, row.runs, row.helped_by) == ("a", 0, "none yet", ["b"])


def test_where_nobody_is_live_there_is_nothing_to_show() -> None:
    status = make_status(
        Snapshot(workers=[live_worker("a", "serving"), WorkerReport(id="b", epoch=1, state="spare")]), []
    )
    assert status.live == []
    assert make_status(Snapshot(workers=[live_worker("a", "live", 3, live_layers=2)]), []).live[0].runs == "1-2"
