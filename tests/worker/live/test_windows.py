"""Between which numbers of layers the optimum lies."""

import pytest
from hypothesis import given, settings

from livescale.services.worker.live.optimum import solve
from livescale.services.worker.live.windows import Pair, greedy, windows
from tests.worker.live.stepping import BATCHES, LOADS, ready_after, tasks_of


@settings(max_examples=40, deadline=None)
@given(batches=BATCHES, loads=LOADS)
def test_the_optimum_lies_within_the_windows_and_is_no_worse_than_the_greedy_solution(
    batches: list[tuple[int, int]], loads: list[int]
) -> None:
    pair = Pair(tasks_of(batches), ready_after(loads))
    optimum, limits = solve(pair.tasks, pair.ready), windows(pair)
    chosen, total = greedy(pair)
    assert total == pytest.approx(sum(pair.ends(chosen)))
    assert sum(optimum.ends) <= total + 1e-6
    for least, count, most in zip(limits.least, optimum.on_target, limits.most, strict=True):
        assert least <= count <= most
