"""The queue of a target whose parameters are still arriving: order, parking, pulls, and its end."""

import pytest

from livescale.services.worker.live.policy import (
    BEST_EFFORT,
    OFF,
    FinishTask,
    GiveBack,
    GiveTask,
    LiveTask,
    Planned,
    Release,
    RunLayer,
)
from livescale.services.worker.live.queue import QueuePhase
from tests.worker.live.queue_steps import queue_of, run_next, shown


def test_the_earliest_task_whose_next_layer_is_loaded_runs_and_then_is_parked() -> None:
    queue = queue_of("ab")
    assert run_next(queue) == [(RunLayer, "a", 0)]
    assert run_next(queue) == [(RunLayer, "b", 0)]
    assert run_next(queue) == []


def test_nothing_runs_before_its_block_is_there() -> None:
    queue = queue_of("a", loaded=0)
    queue.block_ready(1)
    assert run_next(queue) == []
    queue.block_ready(0)
    assert run_next(queue) == [(RunLayer, "a", 0)]
    assert run_next(queue) == [(RunLayer, "a", 1)]


def test_a_task_goes_on_while_its_next_layer_is_loaded() -> None:
    queue = queue_of("ab", loaded=2)
    assert [run_next(queue)[0] for _ in range(4)] == [
        (RunLayer, "a", 0),
        (RunLayer, "a", 1),
        (RunLayer, "b", 0),
        (RunLayer, "b", 1),
    ]


def test_an_arriving_block_brings_back_the_earliest_parked_task() -> None:
    queue = queue_of("abc")
    run_next(queue)
    (run,) = queue.next()
    queue.block_ready(1)
    assert shown([run]) == [(RunLayer, "b", 0)]
    assert shown(queue.layer_done()) == []
    assert shown(queue.next()) == [(RunLayer, "a", 1)]


def test_a_pull_takes_the_earliest_task_with_the_layers_done() -> None:
    queue = queue_of("abc")
    run_next(queue)
    assert shown(queue.pull("s")) == [(GiveTask, "a", "s", 1)]
    assert shown(queue.pull("s")) == [(GiveTask, "b", "s", 0)]
    assert len(queue) == 1
    assert "c" in queue


def test_a_pull_waits_for_the_layer_that_is_being_run_of_the_earliest_task() -> None:
    queue = queue_of("ab")
    queue.next()
    assert queue.pull("s") == ()
    queue.check_invariants()
    assert shown(queue.layer_done()) == [(GiveTask, "a", "s", 1)]


def test_the_second_source_that_asks_gets_the_second_task_at_once() -> None:
    queue = queue_of("ab")
    queue.next()
    assert queue.pull("s") == ()
    assert shown(queue.pull("t")) == [(GiveTask, "b", "t", 0)]


def test_a_pull_of_an_empty_queue_gets_the_next_task_unless_it_is_withdrawn() -> None:
    queue = queue_of("")
    assert queue.pull("s") == queue.pull("t") == queue.pull("t") == ()
    queue.withdraw("s")
    assert shown(queue.append(LiveTask("a", 0.0))) == [(GiveTask, "a", "t", 0)]
    assert queue.append(LiveTask("b", 0.0)) == ()


def test_a_task_that_comes_back_takes_its_place_again_with_its_layers() -> None:
    queue = queue_of("bc", loaded=2)
    queue.append(LiveTask("a", -1.0), done=1)
    assert run_next(queue) == [(RunLayer, "a", 1)]


def test_lower_priority_numbers_go_first() -> None:
    queue = queue_of("a")
    queue.append(LiveTask("urgent", 9.0, priority=-1))
    assert run_next(queue)[0] == (RunLayer, "urgent", 0)


def test_with_the_last_block_the_first_task_is_finished_here_and_others_still_leave() -> None:
    queue = queue_of("abc", loaded=3)
    for layer in (0, 1, 2):
        assert run_next(queue)[0] == (RunLayer, "a", layer)
    queue.block_ready(3)
    assert queue.phase is QueuePhase.DRAINING
    assert shown(queue.pull("s")) == [(GiveTask, "b", "s", 0)]
    assert run_next(queue) == [(RunLayer, "a", 3), (FinishTask, "a")]


def test_the_first_pull_that_finds_nothing_makes_the_target_an_instance_like_any_other() -> None:
    queue = queue_of("a", loaded=4)
    assert shown(queue.pull("s")) == [(Release, "s")]
    assert queue.phase is QueuePhase.PLAIN
    queue.append(LiveTask("b", 9.0))
    assert shown(queue.pull("t")) == [(Release, "t")]
    ran = [run_next(queue) for _ in range(8)]
    assert [each[0] for each in ran] == [(RunLayer, id, layer) for id in "ab" for layer in range(4)]
    assert ran[3][-1] == (FinishTask, "a")


def test_a_pull_that_waits_when_nothing_is_left_is_released() -> None:
    queue = queue_of("", loaded=3)
    queue.pull("s")
    assert shown(queue.block_ready(3)) == [(Release, "s")]


def test_a_removed_task_is_neither_run_on_nor_handed_over() -> None:
    queue = queue_of("abc")
    queue.next()
    queue.pull("s")
    assert shown(queue.remove("a")) == [(GiveTask, "b", "s", 0)]
    assert queue.layer_done() == ()
    assert queue.remove("a") == ()
    assert run_next(queue)[0] == (RunLayer, "c", 0)


def test_an_abort_gives_everything_back_and_releases_who_waits() -> None:
    queue = queue_of("ab")
    run_next(queue)
    queue.next()
    for source in "stu":
        queue.pull(source)
    assert shown(queue.abort("the plan was given up")) == [(GiveBack, "b", 0), (Release, "t"), (Release, "u")]
    assert queue.layer_done() == queue.next() == queue.block_ready(1) == ()
    assert shown(queue.pull("s")) == [(Release, "s")]
    with pytest.raises(ValueError, match="aborted"):
        queue.append(LiveTask("c", 2.0))


def test_best_effort_runs_what_is_loaded_at_most_half_and_never_comes_back() -> None:
    queue = queue_of("abc", rule=BEST_EFFORT)
    assert queue.pull("s") == ()
    assert run_next(queue) == [(RunLayer, "a", 0), (GiveTask, "a", "s", 1)]
    assert run_next(queue) == [(RunLayer, "b", 0)]
    for layer in (1, 2):
        queue.block_ready(layer)
    assert run_next(queue) == [(RunLayer, "c", 0)]
    assert run_next(queue) == [(RunLayer, "c", 1)]
    assert run_next(queue) == []
    assert shown(queue.pull("s")) == [(GiveTask, "b", "s", 1)]


def test_off_runs_nothing_before_the_last_block_and_lets_sources_have_everything() -> None:
    queue = queue_of("abc", loaded=3, rule=OFF)
    assert run_next(queue) == []
    assert shown(queue.pull("s")) == [(GiveTask, "a", "s", 0)]
    queue.block_ready(3)
    assert run_next(queue) == [(RunLayer, "b", 0)]


def test_a_planned_task_leaves_with_exactly_its_layers_and_one_that_came_later_at_any_time() -> None:
    queue = queue_of("abc", loaded=2, rule=Planned({"a": 1, "b": 0}))
    queue.next()
    assert shown(queue.pull("s")) == [(GiveTask, "b", "s", 0)]
    assert shown(queue.layer_done()) == []
    assert run_next(queue) == [(RunLayer, "c", 0)]
    assert [shown(queue.pull("s"))[0] for _ in range(2)] == [(GiveTask, "a", "s", 1), (GiveTask, "c", "s", 1)]


def test_the_work_that_is_left_counts_weights_and_not_what_is_being_run() -> None:
    queue = queue_of("a")
    queue.append(LiveTask("b", 1.0, weight=3.0))
    queue.next()
    assert queue.work == 3 * 1.0 + 4 * 3.0


def test_what_cannot_be_is_refused() -> None:
    queue = queue_of("a")
    with pytest.raises(ValueError, match="here already"):
        queue.append(LiveTask("a", 0.0))
    with pytest.raises(ValueError, match="4 layers are done, of 4"):
        queue.append(LiveTask("b", 0.0), done=4)
    with pytest.raises(ValueError, match="layer 4 is none of 4"):
        queue.block_ready(4)
    with pytest.raises(ValueError, match="no layer is being run"):
        queue.layer_done()
    queue.next()
    with pytest.raises(ValueError, match="is already being run"):
        queue.next()


def test_a_plan_that_comes_later_holds_for_who_is_here_and_answers_pulls_that_may_leave_by_it() -> None:
    queue = queue_of("ab", loaded=2, rule=Planned({"a": 2, "b": 2}))
    run_next(queue)
    assert [task.id for task in queue.unbegun] == ["b"]
    assert shown(queue.pull("s")) == []
    assert shown(queue.go_by(Planned({"a": 1, "b": 0}))) == [(GiveTask, "a", "s", 1)]
    queue.check_invariants()
    assert run_next(queue) == []
