"""The mode zigzag-ilp: plans are those of the integer program where they are better than the queue, and tokens are what
they always are."""

from math import inf

import pytest

from livescale.services.worker.live.optimum import Forecast, solve
from livescale.services.worker.live.planner import MOST_BATCHES, LayerPlanner, better_than_the_queue
from livescale.services.worker.live.policy import ALONE, BatchBudget, LiveTask, Planned
from livescale.services.worker.live.simulation import simulate
from tests.worker.live.live_workers import TARGET, live_workers
from tests.worker.requests import random_prompt, submit

LAYERS, LOAD = 7, 2.0
READY = [LOAD * layer for layer in range(LAYERS)]


def planner(budget: BatchBudget = ALONE) -> LayerPlanner:
    """A planner of seven layers, of which one is here after as long as two layers of 100 rows take. The program has all
    the time."""
    seen = Forecast([100] * LAYERS, began=0.0)
    seen.arrived(1, LOAD)
    seen.ran(100, 1.0)
    return LayerPlanner(seen, budget, limit_seconds=inf)


def waiting(*rows: int) -> list[LiveTask]:
    return [LiveTask(f"r{number}", float(number), rows=count) for number, count in enumerate(rows)]


def weighing(*weights: float) -> list[LiveTask]:
    return [LiveTask(f"{number:02}", 0.0, weight) for number, weight in enumerate(weights)]


async def test_as_many_layers_of_each_request_are_planned_as_the_program_says() -> None:
    rule = await planner().plan(waiting(100, 300, 100, 200), LOAD)
    assert isinstance(rule, Planned)
    assert rule.on_target == {"r0": 0, "r1": 2, "r2": 5, "r3": 7}
    assert tuple(rule.on_target.values()) == solve(weighing(1, 3, 1, 2), READY).on_target


async def test_nothing_is_planned_where_the_queue_is_as_good() -> None:
    made = planner()
    assert await made.plan(waiting(*[100] * 4), LOAD) == Planned({})
    assert await made.plan(waiting(*[100] * 4), LOAD) is None


@pytest.mark.parametrize("limit_seconds", [0.0, inf])
@pytest.mark.parametrize("weights", [(1, 3, 1, 2), (1, 1, 1, 1), (2, 1, 3, 1, 2)])
def test_a_plan_is_better_than_the_queue_or_there_is_none(weights: tuple[int, ...], limit_seconds: float) -> None:
    tasks = weighing(*weights)
    found = better_than_the_queue(tasks, READY, limit_seconds)
    if found is not None:
        rule = Planned({task.id: layers for task, layers in zip(tasks, found.on_target, strict=True)})
        assert simulate(tasks, READY, rule).mean_latency < simulate(tasks, READY).mean_latency


async def test_those_that_run_together_have_one_plan() -> None:
    rule = await planner(BatchBudget(9, 100)).plan(waiting(50, 50, 300, 60, 40, 200), LOAD)
    assert rule is not None
    assert rule.on_target == {"r0": 0, "r1": 0, "r2": 2, "r3": 5, "r4": 5, "r5": 7}


async def test_nothing_is_planned_before_a_layer_was_run_nor_where_nobody_new_waits() -> None:
    assert await LayerPlanner(Forecast([1, 1], began=0.0), ALONE).plan(waiting(100), 0.0) is None
    made = planner()
    assert await made.plan([], LOAD) is None
    assert await made.plan(waiting(100, 300, 100), LOAD) is not None
    assert await made.plan(waiting(100, 300, 100), LOAD) is None
    assert await made.plan(waiting(100, 300, 100, 200), LOAD) is not None


async def test_those_that_are_too_many_for_one_program_go_in_zigzag_until_their_turn() -> None:
    made = planner()
    rule = await made.plan(waiting(100, 300, 100, *[200] * MOST_BATCHES), LOAD)
    assert rule is not None
    assert rule.on_target.keys() <= {f"r{number}" for number in range(MOST_BATCHES)}
    assert await made.plan(waiting(100, 300, 100, *[200] * MOST_BATCHES)[1:], LOAD) is not None


async def test_tokens_are_those_of_an_undisturbed_worker() -> None:
    requests = [submit(f"r{number}", random_prompt(number, 100 + number), max_tokens=12) for number in range(5)]
    async with live_workers(mode="zigzag-ilp") as live:
        await live.give_layers(1)
        await live.fleet.admit(TARGET, requests[0])
        await live.ran(1)  # so that it is known how long a layer takes
        for request in requests[1:]:
            await live.fleet.admit(TARGET, request)
        await live.ran(2)
        await live.help("s")
        await live.give_layers(2)
        await live.give_all()
        await live.serve()
        expected = live.undisturbed(*requests)
        assert {one.request_id: await live.fleet.finished(one.request_id) for one in requests} == expected
