"""Tasks that stand at the same layer run together, as many as there is room for."""

import pytest

from livescale.services.worker.live.policy import (
    BEST_EFFORT,
    AskTarget,
    BatchBudget,
    FinishTask,
    GiveTask,
    LiveTask,
    Planned,
    RunLayer,
    SourceEffect,
    SourcePolicy,
    StopAsking,
    batch_budget,
)
from livescale.shared.bus.codec import MAX_PAYLOAD_BYTES
from livescale.shared.messages.images import MOST_IMAGE_BYTES, Images
from tests.worker.live.queue_steps import queue_of, run_next, shown
from tests.worker.requests import limits


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
        (GiveTask, "a", "s", 1),
        (GiveTask, "b", "s", 1),
        (GiveTask, "c", "s", 0),
    ]
    assert shown(queue.pull("s", BatchBudget(3, 0))) == [(GiveTask, "d", "s", 0)]


def test_pulls_wait_for_tasks_that_run_together_and_the_next_one_gets_those_after_them() -> None:
    queue = queue_of("abcd", budget=BatchBudget(9, 2))
    queue.next()
    assert queue.pull("s", BatchBudget(9, 9)) == ()
    assert shown(queue.pull("t", BatchBudget(1, 9))) == [(GiveTask, "c", "t", 0)]
    assert queue.remove("b") == ()
    queue.check_invariants()
    assert shown(queue.layer_done()) == [(GiveTask, "a", "s", 1), (GiveTask, "d", "s", 0)]


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


def helping(*targets: str) -> SourcePolicy:
    """A source that helps these targets, none of which has anything as far as is known."""
    source = SourcePolicy()
    for target in targets:
        assert source.help(target) == ()
    source.idle(0)
    for target in targets:
        source.nothing(target)
    source.busy()
    source.check_invariants()
    return source


def asked(effects: tuple[SourceEffect, ...]) -> list[str]:
    """The targets to pull from; others are to be left alone."""
    return [effect.target for effect in effects if isinstance(effect, AskTarget)]


def test_it_pulls_from_all_its_targets_and_only_when_nothing_of_its_own_waits() -> None:
    source = helping("t", "u")
    assert source.idle(waiting=1) == ()
    assert asked(source.idle(waiting=0)) == ["t", "u"]
    assert source.idle(waiting=0) == ()
    source.check_invariants()


def test_targets_that_it_does_not_know_are_asked_one_after_the_other_until_none_has_anything() -> None:
    source = SourcePolicy()
    for target in "tuv":
        source.help(target)
    assert asked(source.idle(0)) == ["t"]
    effects = source.nothing("t")
    assert effects[0] == StopAsking("t", "others may have something")
    assert asked(effects) == ["u"]
    assert asked(source.nothing("u")) == ["v"]
    assert asked(source.nothing("v")) == ["t", "u"]
    assert source.nothing("t") == ()
    source.check_invariants()


def test_it_withdraws_from_the_others_when_one_answers_or_work_of_its_own_comes() -> None:
    source = helping("t", "u")
    source.idle(0)
    (effect,) = source.busy("t")
    assert isinstance(effect, StopAsking)
    assert effect.target == "u"
    assert source.busy("u") == ()  # it had answered before it heard
    source.idle(0)
    assert [effect.target for effect in source.busy()] == ["t", "u"]


def test_a_source_that_waits_asks_a_new_target_at_once() -> None:
    source = helping("t")
    source.idle(0)
    assert asked(source.help("u")) == ["u"]
    assert source.help("u") == ()


def test_targets_that_have_more_are_asked_one_at_a_time_in_turn() -> None:
    source = helping("t", "u", "v")
    source.idle(0)
    source.busy("u", more=True)
    source.busy("t", more=True)  # it had answered before it heard
    assert asked(source.idle(0)) == ["u"]
    source.busy("u", more=True)
    assert asked(source.idle(0)) == ["t"]
    source.busy("t")
    assert asked(source.idle(0)) == ["u"]
    assert asked(source.nothing("u")) == ["t", "v"]
    source.check_invariants()


def test_nothing_from_one_that_is_not_asked_any_more_changes_nothing() -> None:
    source = helping("t", "u")
    source.idle(0)
    source.busy("t")
    assert source.nothing("u") == ()
    assert asked(source.idle(0)) == ["t", "u"]


def test_one_that_leaves_while_it_alone_is_asked_has_the_others_asked() -> None:
    source = helping("t", "u")
    source.idle(0)
    source.busy("t", more=True)
    source.idle(0)
    source.leave("t")
    source.check_invariants()
    assert asked(source.idle(0)) == ["u"]


def test_a_source_that_was_released_by_all_is_an_instance_like_any_other() -> None:
    source = helping("t", "u")
    source.idle(0)
    source.leave("t")
    assert source.busy("u") == ()
    source.leave("u")
    assert not source.helps
    assert source.idle(0) == ()
    source.check_invariants()
