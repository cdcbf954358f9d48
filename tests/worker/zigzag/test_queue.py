"""The queue of a target whose parameters are still arriving: order, parking, pulls, and its end."""

from collections.abc import Iterable

import pytest

from livescale.services.worker.zigzag.effects import Finish, GiveBack, HandOver, Park, QueueEffect, Release, Run
from livescale.services.worker.zigzag.queue import LiveQueue, Phase
from livescale.services.worker.zigzag.rules import BEST_EFFORT, OFF, Planned
from livescale.services.worker.zigzag.tasks import Room, Task


def queue_of(tasks: str, loaded: int = 1, layers: int = 4, **fields: object) -> LiveQueue:
    """One task a letter, in the order of their arrival."""
    queue = LiveQueue(layers, **fields)  # type: ignore[arg-type]
    for number, id in enumerate(tasks):
        queue.append(Task(id, float(number)))
    for layer in range(loaded):
        queue.block_ready(layer)
    return queue


def shown(effects: Iterable[QueueEffect]) -> list[tuple[object, ...]]:
    """Without reasons, which every effect has."""
    shown: list[tuple[object, ...]] = []
    for effect in effects:
        assert effect.reason
        match effect:
            case HandOver(task, source, done):
                shown.append((HandOver, task, source, done))
            case Release(source):
                shown.append((Release, source))
            case Finish(task):
                shown.append((Finish, task))
            case Run(tasks, layer):
                shown.append((Run, ",".join(tasks), layer))
            case Park(task, layer) | GiveBack(task, layer):
                shown.append((type(effect), task, layer))
    return shown


def run_next(queue: LiveQueue) -> list[tuple[object, ...]]:
    """A layer from its choice to its end."""
    chosen = shown(queue.next())
    queue.check_invariants()
    if chosen and chosen[-1][0] is Run:
        chosen += shown(queue.layer_done())
        queue.check_invariants()
    return chosen


def test_the_earliest_task_whose_next_layer_is_loaded_runs_and_then_is_parked() -> None:
    queue = queue_of("ab")
    assert run_next(queue) == [(Run, "a", 0), (Park, "a", 1)]
    assert run_next(queue) == [(Run, "b", 0), (Park, "b", 1)]
    assert run_next(queue) == []


def test_nothing_runs_before_its_block_is_there() -> None:
    queue = queue_of("a", loaded=0)
    queue.block_ready(1)
    assert run_next(queue) == []
    queue.block_ready(0)
    assert run_next(queue) == [(Run, "a", 0)]
    assert run_next(queue) == [(Run, "a", 1), (Park, "a", 2)]


def test_a_task_goes_on_while_its_next_layer_is_loaded() -> None:
    queue = queue_of("ab", loaded=2)
    assert [run_next(queue)[0] for _ in range(4)] == [(Run, "a", 0), (Run, "a", 1), (Run, "b", 0), (Run, "b", 1)]


def test_an_arriving_block_brings_back_the_earliest_parked_task() -> None:
    queue = queue_of("abc")
    run_next(queue)
    (run,) = queue.next()
    queue.block_ready(1)
    assert shown([run]) == [(Run, "b", 0)]
    assert shown(queue.layer_done()) == []
    assert shown(queue.next()) == [(Park, "b", 1), (Run, "a", 1)]


def test_a_pull_takes_the_earliest_task_with_the_layers_done() -> None:
    queue = queue_of("abc")
    run_next(queue)
    assert shown(queue.pull("s")) == [(HandOver, "a", "s", 1)]
    assert shown(queue.pull("s")) == [(HandOver, "b", "s", 0)]
    assert len(queue) == 1
    assert "c" in queue


def test_a_pull_waits_for_the_layer_that_is_being_run_of_the_earliest_task() -> None:
    queue = queue_of("ab")
    queue.next()
    assert queue.pull("s") == ()
    queue.check_invariants()
    assert shown(queue.layer_done()) == [(HandOver, "a", "s", 1)]


def test_the_second_source_that_asks_gets_the_second_task_at_once() -> None:
    queue = queue_of("ab")
    queue.next()
    assert queue.pull("s") == ()
    assert shown(queue.pull("t")) == [(HandOver, "b", "t", 0)]


def test_a_pull_of_an_empty_queue_gets_the_next_task_unless_it_is_withdrawn() -> None:
    queue = queue_of("")
    assert queue.pull("s") == queue.pull("t") == queue.pull("t") == ()
    queue.withdraw("s")
    assert shown(queue.append(Task("a", 0.0))) == [(HandOver, "a", "t", 0)]
    assert queue.append(Task("b", 0.0)) == ()


def test_a_task_that_comes_back_takes_its_place_again_with_its_layers() -> None:
    queue = queue_of("bc", loaded=2)
    queue.append(Task("a", -1.0), done=1)
    assert run_next(queue) == [(Run, "a", 1), (Park, "a", 2)]


def test_lower_priority_numbers_go_first() -> None:
    queue = queue_of("a")
    queue.append(Task("urgent", 9.0, priority=-1))
    assert run_next(queue)[0] == (Run, "urgent", 0)


def test_with_the_last_block_the_first_task_is_finished_here_and_others_still_leave() -> None:
    queue = queue_of("abc", loaded=3)
    for layer in (0, 1, 2):
        assert run_next(queue)[0] == (Run, "a", layer)
    queue.block_ready(3)
    assert queue.phase is Phase.DRAINING
    assert shown(queue.pull("s")) == [(HandOver, "b", "s", 0)]
    assert run_next(queue) == [(Run, "a", 3), (Finish, "a")]


def test_the_first_pull_that_finds_nothing_makes_the_target_an_instance_like_any_other() -> None:
    queue = queue_of("a", loaded=4)
    assert shown(queue.pull("s")) == [(Release, "s")]
    assert queue.phase is Phase.PLAIN
    queue.append(Task("b", 9.0))
    assert shown(queue.pull("t")) == [(Release, "t")]
    ran = [run_next(queue) for _ in range(8)]
    assert [each[0] for each in ran] == [(Run, id, layer) for id in "ab" for layer in range(4)]
    assert ran[3][-1] == (Finish, "a")


def test_a_pull_that_waits_when_nothing_is_left_is_released() -> None:
    queue = queue_of("", loaded=3)
    queue.pull("s")
    assert shown(queue.block_ready(3)) == [(Release, "s")]


def test_a_removed_task_is_neither_run_on_nor_handed_over() -> None:
    queue = queue_of("abc")
    queue.next()
    queue.pull("s")
    assert shown(queue.remove("a")) == [(HandOver, "b", "s", 0)]
    assert queue.layer_done() == ()
    assert queue.remove("a") == ()
    assert run_next(queue)[0] == (Run, "c", 0)


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
        queue.append(Task("c", 2.0))


def test_best_effort_runs_what_is_loaded_at_most_half_and_never_comes_back() -> None:
    queue = queue_of("abc", rule=BEST_EFFORT)
    assert queue.pull("s") == ()
    assert run_next(queue) == [(Run, "a", 0), (HandOver, "a", "s", 1)]
    assert run_next(queue) == [(Run, "b", 0), (Park, "b", 1)]
    for layer in (1, 2):
        queue.block_ready(layer)
    assert run_next(queue) == [(Run, "c", 0)]
    assert run_next(queue) == [(Run, "c", 1), (Park, "c", 2)]
    assert run_next(queue) == []
    assert shown(queue.pull("s")) == [(HandOver, "b", "s", 1)]


def test_off_runs_nothing_before_the_last_block_and_lets_sources_have_everything() -> None:
    queue = queue_of("abc", loaded=3, rule=OFF)
    assert run_next(queue) == []
    assert shown(queue.pull("s")) == [(HandOver, "a", "s", 0)]
    queue.block_ready(3)
    assert run_next(queue) == [(Run, "b", 0)]


def test_a_planned_task_leaves_with_exactly_its_layers_and_one_that_came_later_at_any_time() -> None:
    queue = queue_of("abc", loaded=2, rule=Planned({"a": 1, "b": 0}))
    queue.next()
    assert shown(queue.pull("s")) == [(HandOver, "b", "s", 0)]
    assert shown(queue.layer_done()) == [(Park, "a", 1)]
    assert run_next(queue) == [(Run, "c", 0)]
    assert [shown(queue.pull("s"))[0] for _ in range(2)] == [(HandOver, "a", "s", 1), (HandOver, "c", "s", 1)]


def test_tasks_at_the_same_layer_run_together_in_order_while_there_is_room() -> None:
    queue = queue_of("abcd", loaded=2, room=Room(9, 3))
    assert run_next(queue) == [(Run, "a,b,c", 0)]
    assert run_next(queue) == [(Run, "a,b,c", 1), (Park, "a", 2), (Park, "b", 2), (Park, "c", 2)]
    assert run_next(queue) == [(Run, "d", 0)]
    queue.append(Task("e", 4.0))
    assert run_next(queue) == [(Run, "d", 1), (Park, "d", 2)]
    queue.block_ready(2)
    assert run_next(queue)[0] == (Run, "a,b,c", 2)
    assert run_next(queue)[0] == (Run, "d", 2)


def test_one_task_alone_may_have_more_rows_than_there_is_room_for_and_none_is_overtaken() -> None:
    queue = queue_of("", room=Room(9, 3))
    for number, (id, rows) in enumerate((("a", 5), ("b", 1), ("c", 4), ("d", 1), ("e", 1))):
        queue.append(Task(id, float(number), rows=rows))
    assert [run_next(queue)[0] for _ in range(4)] == [(Run, "a", 0), (Run, "b", 0), (Run, "c", 0), (Run, "d,e", 0)]


def test_full_batches_run_as_if_none_ran_together() -> None:
    alone, full = queue_of("abc", loaded=2), queue_of("", loaded=2, room=Room(9, 512))
    for number, id in enumerate("abc"):
        full.append(Task(id, float(number), rows=512))
    for queue in (alone, full):
        queue.pull("s")
    assert [run_next(alone) for _ in range(4)] == [run_next(full) for _ in range(4)]


def test_a_pull_takes_as_many_as_its_source_can_run_together_each_with_its_layers() -> None:
    queue = queue_of("abcd", room=Room(9, 2))
    run_next(queue)
    assert shown(queue.pull("s", Room(3, 9))) == [
        (HandOver, "a", "s", 1),
        (HandOver, "b", "s", 1),
        (HandOver, "c", "s", 0),
    ]
    assert shown(queue.pull("s", Room(3, 0))) == [(HandOver, "d", "s", 0)]


def test_pulls_wait_for_tasks_that_run_together_and_the_next_one_gets_those_after_them() -> None:
    queue = queue_of("abcd", room=Room(9, 2))
    queue.next()
    assert queue.pull("s", Room(9, 9)) == ()
    assert shown(queue.pull("t", Room(1, 9))) == [(HandOver, "c", "t", 0)]
    assert queue.remove("b") == ()
    queue.check_invariants()
    assert shown(queue.layer_done()) == [(HandOver, "a", "s", 1), (HandOver, "d", "s", 0)]


def test_tasks_that_run_together_are_parked_for_one_that_goes_first_and_finish_together() -> None:
    queue = queue_of("bc", loaded=2, layers=3, room=Room(9, 2))
    run_next(queue)
    queue.append(Task("a", -1.0))
    assert run_next(queue) == [(Park, "b", 1), (Park, "c", 1), (Run, "a", 0)]
    assert run_next(queue)[:2] == [(Run, "a,b", 1), (Park, "a", 2)]
    queue.block_ready(2)
    assert run_next(queue) == [(Run, "a,b", 2), (Finish, "a"), (Finish, "b")]


def test_best_effort_and_plans_hold_for_each_of_those_that_run_together() -> None:
    queue = queue_of("abc", rule=BEST_EFFORT, room=Room(9, 9))
    assert run_next(queue) == [(Run, "a,b,c", 0), (Park, "a", 1), (Park, "b", 1), (Park, "c", 1)]
    queue.block_ready(1)
    assert run_next(queue) == []
    planned = queue_of("abc", loaded=2, rule=Planned({"a": 1, "b": 0, "c": 2}), room=Room(9, 9))
    assert run_next(planned) == [(Run, "a,c", 0), (Park, "a", 1)]
    assert run_next(planned) == [(Run, "c", 1), (Park, "c", 2)]


def test_the_work_that_is_left_counts_weights_and_not_what_is_being_run() -> None:
    queue = queue_of("a")
    queue.append(Task("b", 1.0, weight=3.0))
    queue.next()
    assert queue.work == 3 * 1.0 + 4 * 3.0


def test_what_cannot_be_is_refused() -> None:
    queue = queue_of("a")
    with pytest.raises(ValueError, match="here already"):
        queue.append(Task("a", 0.0))
    with pytest.raises(ValueError, match="4 layers are done, of 4"):
        queue.append(Task("b", 0.0), done=4)
    with pytest.raises(ValueError, match="layer 4 is none of 4"):
        queue.block_ready(4)
    with pytest.raises(ValueError, match="no layer is being run"):
        queue.layer_done()
    queue.next()
    with pytest.raises(ValueError, match="is being run"):
        queue.next()


def test_a_plan_that_comes_later_holds_for_who_is_here_and_answers_pulls_that_may_leave_by_it() -> None:
    queue = queue_of("ab", loaded=2, rule=Planned({"a": 2, "b": 2}))
    run_next(queue)
    assert [task.id for task in queue.unbegun] == ["b"]
    assert shown(queue.pull("s")) == []
    assert shown(queue.go_by(Planned({"a": 1, "b": 0}))) == [(HandOver, "a", "s", 1)]
    queue.check_invariants()
    assert run_next(queue) == []
