"""Live scaling in `livescale status`."""

from msgspec.structs import replace

from livescale.services.cli.live_view import live_rows
from livescale.services.cli.status_view import make_status
from livescale.shared.messages.membership import Holding, WorkerReport, WorkerState
from livescale.shared.messages.registry import Snapshot


def worker(id: str, state: WorkerState, blocks: int = 14, **more: object) -> WorkerReport:
    """Of a model with 12 layers."""
    holding = Holding(model="m", version="v", ready=list(range(blocks)), total=14)
    return replace(WorkerReport(id=id, epoch=1, state=state, model="m", instance=f"i-{id}", holding=holding), **more)


def test_it_is_shown_which_layers_a_live_worker_runs_and_who_runs_the_rest() -> None:
    live = worker("worker-2", "live", 6, live_layers=5, live_waiting=3, handed_over={"worker-0": 7})
    helpers = [worker(id, "serving", helping=["worker-2"]) for id in ("worker-1", "worker-0")]
    [row] = live_rows([live, *helpers])
    assert (row.worker, row.state, row.ready, row.layers, row.runs) == ("worker-2", "live", 5, 12, "1-5")
    assert (row.waiting, row.helped_by, row.helpers_run) == (3, ["worker-0", "worker-1"], "the rest, to 12")
    assert row.handed_over == {"worker-0": 7}


def test_the_head_is_no_layer_and_who_is_whole_runs_all() -> None:
    [row] = live_rows([worker("a", "live", 14, live_layers=13)])
    assert (row.ready, row.runs, row.helped_by, row.helpers_run) == (12, "1-12", [], "")
    [row] = live_rows([worker("a", "serving", handed_over={"b": 2})])
    assert (row.ready, row.runs) == (12, "1-12")


def test_who_is_helped_before_its_first_layer_runs_none_yet() -> None:
    [row] = live_rows([worker("a", "loading", 1), worker("b", "serving", helping=["a"])])
    assert (row.worker, row.ready, row.runs, row.helped_by) == ("a", 0, "none yet", ["b"])


def test_where_nobody_is_live_there_is_nothing_to_show() -> None:
    status = make_status(Snapshot(workers=[worker("a", "serving"), WorkerReport(id="b", epoch=1, state="spare")]), [])
    assert status.live == []
    assert make_status(Snapshot(workers=[worker("a", "live", 3, live_layers=2)]), []).live[0].runs == "1-2"
