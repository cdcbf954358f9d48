"""The integer program: against every way to share the layers, stepped through time; its bounds; how long it takes."""

import random
import time

import pytest
from hypothesis import given, settings

from livescale.services.worker.live.optimum import Forecast, solve
from livescale.services.worker.live.policy import LiveTask, Planned
from livescale.services.worker.live.simulation import simulate
from livescale.services.worker.live.windows import Pair, greedy
from tests.worker.live.stepping import BATCHES, LOADS, best_latency, ends_with, ready_after, tasks_of


@settings(max_examples=60, deadline=None)
@given(batches=BATCHES, loads=LOADS)
def test_it_finds_what_trying_everything_finds(batches: list[tuple[int, int]], loads: list[int]) -> None:
    ready = ready_after(loads)
    optimum = solve(tasks_of(batches), ready)
    assert optimum.mean_latency == pytest.approx(best_latency(batches, ready))
    assert ends_with(batches, ready, optimum.on_target) == pytest.approx(optimum.ends)


@pytest.mark.parametrize("load", [2, 6])
def test_the_queue_without_a_program_is_as_good_for_equal_batches_that_wait(load: int) -> None:
    tasks = [LiveTask(f"{number:02}", 0.0) for number in range(8)]
    ready = [float(load * layer) for layer in range(12)]
    assert simulate(tasks, ready).mean_latency == pytest.approx(solve(tasks, ready).mean_latency)


@pytest.mark.parametrize("load", [3, 6, 10])
def test_a_queue_that_follows_the_plan_ends_every_task_when_the_plan_says(load: int) -> None:
    tasks = [LiveTask(f"{number:02}", 0.0) for number in range(6)]
    ready = [float(load * layer) for layer in range(24)]
    optimum = solve(tasks, ready)
    run = simulate(
        tasks, ready, Planned({task.id: count for task, count in zip(tasks, optimum.on_target, strict=True)})
    )
    until = [number for number, end in enumerate(optimum.ends) if end <= ready[-1]]
    assert len(until) >= 3
    assert [run.ends[tasks[number].id] for number in until] == pytest.approx([optimum.ends[number] for number in until])


def test_the_queue_is_near_the_optimum_for_batches_of_unequal_length() -> None:
    chance = random.Random(3)
    tasks = [LiveTask(f"{number:02}", 0.0, chance.choice([0.5, 1.0, 2.0])) for number in range(8)]
    ready = [6.0 * layer for layer in range(12)]
    assert simulate(tasks, ready).mean_latency <= 1.05 * solve(tasks, ready).mean_latency


def test_layers_that_are_there_from_the_start_are_shared_evenly() -> None:
    optimum = solve([LiveTask("a", 0.0), LiveTask("b", 0.0), LiveTask("c", 0.0)], [0.0] * 8)
    assert optimum.ends[0] == 8
    assert sum(optimum.ends) == 8 + 8 + 16


def test_it_does_not_matter_where_the_clock_begins() -> None:
    tasks, ready = tasks_of([(0, 1), (3, 2), (4, 1)]), [1.0, 3.0, 6.0]
    later = [LiveTask(task.id, task.arrival + 1.7e9, task.weight) for task in tasks]
    optimum, moved = solve(tasks, ready), solve(later, [at + 1.7e9 for at in ready])
    assert moved.on_target == optimum.on_target
    assert moved.mean_latency == pytest.approx(optimum.mean_latency)
    assert moved.ends == pytest.approx([end + 1.7e9 for end in optimum.ends])


def test_without_time_the_best_that_is_known_is_taken() -> None:
    tasks, ready = tasks_of([(0, 1), (0, 3), (0, 1), (0, 2)]), [2.0 * layer for layer in range(7)]
    hurried, optimum = solve(tasks, ready, limit_seconds=0.0), solve(tasks, ready)
    assert optimum.proven
    assert not hurried.proven
    assert sum(optimum.ends) <= sum(hurried.ends) <= greedy(Pair(tasks, ready))[1]
    assert hurried.ends == pytest.approx(
        ends_with([(0, 1), (0, 3), (0, 1), (0, 2)], list(map(int, ready)), hurried.on_target)
    )


def test_a_dozen_batches_of_32_layers_take_a_moment() -> None:
    tasks = [LiveTask(f"{number:02}", 0.0) for number in range(12)]
    ready = [6.0 * layer for layer in range(32)]
    solve(tasks, ready)  # imports
    began = time.process_time()
    solve(tasks, ready)
    assert time.process_time() - began < 2.0  # `livescale bench zigzag` measures it


def test_no_tasks_no_weight_and_blocks_out_of_order_are_refused() -> None:
    for tasks in ([], [LiveTask("a", 0.0, 0.0)]):
        with pytest.raises(ValueError, match="at least one task, and of weights above zero"):
            solve(tasks, [0.0])
    for ready in ([], [1.0, 0.0]):
        with pytest.raises(ValueError, match="in their order"):
            solve([LiveTask("a", 0.0)], ready)


def test_missing_layers_are_expected_at_the_pace_of_those_that_came() -> None:
    seen = Forecast([200, 100, 100, 50], began=10.0)
    assert seen.ready(10.0) is None
    seen.arrived(2, 13.0)
    assert seen.ready(13.0) == [0.0, 0.0, 1.0, 1.5]
    assert seen.ready(13.5) == [0.0, 0.0, 0.5, 1.0]


def test_a_layer_that_is_late_is_expected_at_any_moment() -> None:
    seen = Forecast([100, 100, 100], began=0.0)
    seen.arrived(1, 1.0)
    assert seen.ready(2.5) == [0.0, 0.0, 0.5]


def test_word_of_fewer_layers_than_are_here_is_old() -> None:
    seen = Forecast([100, 100], began=0.0)
    seen.arrived(1, 1.0)
    seen.arrived(1, 5.0)
    assert seen.ready(5.0) == [0.0, 0.0]


def test_layers_take_as_long_as_those_that_were_run_by_row() -> None:
    seen = Forecast([100, 100], began=0.0)
    assert seen.layer_seconds(10) is None
    seen.ran(10, 0.1)
    seen.ran(30, 0.1)
    assert seen.layer_seconds(100) == 0.5
