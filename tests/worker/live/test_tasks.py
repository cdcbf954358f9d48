"""Tasks that stand at the same layer run together, as many as there is room for."""

import pytest

from livescale.services.worker.live.policy import BEST_EFFORT, Planned
from livescale.services.worker.live.tasks import (
    BatchBudget,
    FinishTask,
    HandOver,
    LiveTask,
    RunLayer,
    batch_budget,
)
from livescale.shared.bus.codec import MAX_PAYLOAD_BYTES
from livescale.shared.messages.images import MOST_IMAGE_BYTES, Images
from tests.worker.live.queue_steps import queue_of, run_next, shown
from tests.worker.serving import limits


def test_tasks_at_the_same_layer_run_together_in_order_while_there_is_room() -> None:
    queue = queue_of("abcd", loaded=2, budget=BatchBudget(9, 3))
    assert run_next(queue) == [(RunLayer, "a,b,c", 0)]
    assert run_next(queue) == [(RunLayer, "a,b,c", 1)]
    assert run_next(queue) == [(RunLayer, "d", 0)]
    queue.append(LiveTask("e", 4.0))
    assert run_next(queue) == [(RunLayer, "d", 1)]
    queue.block_ready(2)
    assert run_next(queue)[0] == (RunLayer, "a,b,c", 2)
    assert run_next(queue)[0] == (RunLayer, "d", 2)


def test_one_task_alone_may_have_more_rows_than_there_is_room_for_and_none_is_overtaken() -> None:
    queue = queue_of("", budget=BatchBudget(9, 3))
    for number, (id, rows) in enumerate((("a", 5), ("b", 1), ("c", 4), ("d", 1), ("e", 1))):
        queue.append(LiveTask(id, float(number), rows=rows))
    assert [run_next(queue)[0] for _ in range(4)] == [
        (RunLayer, "a", 0),
        (RunLayer, "b", 0),
        (RunLayer, "c", 0),
        (RunLayer, "d,e", 0),
    ]


def test_full_batches_run_as_if_none_ran_together() -> None:
    alone, full = queue_of("abc", loaded=2), queue_of("", loaded=2, budget=BatchBudget(9, 512))
    for number, id in enumerate("abc"):
        full.append(LiveTask(id, float(number), rows=512))
    for queue in (alone, full):
        queue.pull("s")
    assert [run_next(alone) for _ in range(4)] == [run_next(full) for _ in range(4)]


def test_a_pull_takes_as_many_as_its_source_can_run_together_each_with_its_layers() -> None:
    queue = queue_of("abcd", budget=BatchBudget(9, 2))
    run_next(queue)
    assert shown(queue.pull("s", BatchBudget(3, 9))) == [
        (HandOver, "a", "s", 1),
        (HandOver, "b", "s", 1),
        (HandOver, "c", "s", 0),
    ]
    assert shown(queue.pull("s", BatchBudget(3, 0))) == [(HandOver, "d", "s", 0)]


def test_pulls_wait_for_tasks_that_run_together_and_the_next_one_gets_those_after_them() -> None:
    queue = queue_of("abcd", budget=BatchBudget(9, 2))
    queue.next()
    assert queue.pull("s", BatchBudget(9, 9)) == ()
    assert shown(queue.pull("t", BatchBudget(1, 9))) == [(HandOver, "c", "t", 0)]
    assert queue.remove("b") == ()
    queue.check_invariants()
    assert shown(queue.layer_done()) == [(HandOver, "a", "s", 1), (HandOver, "d", "s", 0)]


def test_tasks_that_run_together_are_parked_for_one_that_goes_first_and_finish_together() -> None:
    queue = queue_of("bc", loaded=2, layers=3, budget=BatchBudget(9, 2))
    run_next(queue)
    queue.append(LiveTask("a", -1.0))
    assert run_next(queue) == [(RunLayer, "a", 0)]
    assert run_next(queue)[:1] == [(RunLayer, "a,b", 1)]
    queue.block_ready(2)
    assert run_next(queue) == [(RunLayer, "a,b", 2), (FinishTask, "a"), (FinishTask, "b")]


def test_best_effort_and_plans_hold_for_each_of_those_that_run_together() -> None:
    queue = queue_of("abc", rule=BEST_EFFORT, budget=BatchBudget(9, 9))
    assert run_next(queue) == [(RunLayer, "a,b,c", 0)]
    queue.block_ready(1)
    assert run_next(queue) == []
    planned = queue_of("abc", loaded=2, rule=Planned({"a": 1, "b": 0, "c": 2}), budget=BatchBudget(9, 9))
    assert run_next(planned) == [(RunLayer, "a,c", 0)]
    assert run_next(planned) == [(RunLayer, "c", 1)]


@pytest.mark.parametrize("size", [24, 64, 72, 224, 384, 577])
def test_images_that_go_together_fit_into_one_message(size: int) -> None:
    """Beside its pixels a request has a token for each row, and less than a thousand bytes."""
    images = Images(size=size, patch=16)
    tasks = batch_budget(limits(max_num_seqs=64, images=images), joined_rows=2_048).tasks
    assert tasks >= 1
    assert tasks * (images.size_bytes + images.rows + 1_000) < MAX_PAYLOAD_BYTES
    assert tasks == 64 or (tasks + 1) * images.size_bytes > MOST_IMAGE_BYTES / 2


def test_texts_go_together_as_many_as_run_together() -> None:
    assert batch_budget(limits(max_num_seqs=64), joined_rows=128) == BatchBudget(64, 128)
