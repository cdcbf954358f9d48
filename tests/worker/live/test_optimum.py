"""The mode zigzag-ilp: plans are those of the integer program, and tokens are what they always are."""

from services.worker.live.optimum import MOST_TASKS, Optimum, Waiting
from services.worker.zigzag.forecast import Forecast
from services.worker.zigzag.ilp import solve
from services.worker.zigzag.rules import Planned
from services.worker.zigzag.tasks import Task
from tests.worker.live.pair import TARGET, pair
from tests.worker.serving import random_prompt, submit


def optimum() -> Optimum:
    """Of seven layers one is here, after as long as six layers of 100 rows take."""
    seen = Forecast([100] * 7, began=0.0)
    seen.arrived(1, 6.0)
    seen.ran(100, 1.0)
    return Optimum(seen)


def waiting(count: int) -> list[Waiting]:
    return [Waiting(f"r{number}", 100) for number in range(count)]


async def test_of_each_request_as_many_layers_are_planned_as_the_program_says() -> None:
    rule = await optimum().plan(waiting(4), 6.0)
    expected = solve([Task(str(number), 0.0) for number in range(4)], [6.0 * layer for layer in range(7)])
    assert isinstance(rule, Planned)
    assert rule.on_target == {f"r{number}": layers for number, layers in enumerate(expected.on_target)}
    assert any(rule.on_target.values())


async def test_nothing_is_planned_before_a_layer_was_run_nor_where_nobody_new_waits() -> None:
    assert await Optimum(Forecast([1, 1], began=0.0)).plan(waiting(1), 0.0) is None
    made = optimum()
    assert await made.plan([], 6.0) is None
    assert await made.plan(waiting(2), 6.0) is not None
    assert await made.plan(waiting(2), 7.0) is None
    assert await made.plan(waiting(3), 7.0) is not None


async def test_those_that_are_too_many_for_one_program_go_in_zigzag_until_their_turn() -> None:
    rule = await optimum().plan(waiting(MOST_TASKS + 1), 6.0)
    assert rule is not None
    assert len(rule.on_target) == MOST_TASKS


async def test_tokens_are_those_of_an_undisturbed_worker() -> None:
    requests = [submit(f"r{number}", random_prompt(number, 100 + number), max_tokens=12) for number in range(5)]
    async with pair(mode="zigzag-ilp") as live:
        await live.give_layers(1)
        await live.made.admit(TARGET, requests[0])
        await live.ran(1)  # so that it is known how long a layer takes
        for request in requests[1:]:
            await live.made.admit(TARGET, request)
        await live.ran(2)
        await live.help("s")
        await live.give_layers(2)
        await live.give_all()
        await live.serve()
        expected = live.undisturbed(*requests)
        assert {one.request_id: await live.made.finished(one.request_id) for one in requests} == expected
