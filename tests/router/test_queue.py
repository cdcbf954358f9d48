"""The router's queue: lower priorities and resumed requests go first, and no request waits for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.router.queue import RESUMED_ARRIVALS, Queue, Waiting
from livescale.shared.messages.requests import PRIORITY_ARRIVALS, queue_position
from tests.fuzz.effort import examples
from tests.router.examples import NOW, request


def waiting(arrival: int, priority: int = 0, resumed: bool = False) -> Waiting:
    asked = request(str(arrival), priority=priority, generated=[1] if resumed else [])
    return Waiting(asked, arrival, NOW)


def served_before(first: Waiting, *later: Waiting) -> list[int]:
    """Return which of these requests go before `first`."""
    queue = Queue()
    for one in (first, *later):
        queue.add(one)
    order = [one.arrival for one in queue]
    return order[: order.index(first.arrival)]


def test_behind_an_endless_stream_of_a_lower_priority_a_request_waits_for_so_many_and_no_more() -> None:
    stream = [waiting(arrival) for arrival in range(2, 1_000)]
    assert served_before(waiting(1, priority=1), *stream) == list(range(2, PRIORITY_ARRIVALS + 1))


def test_each_priority_is_worth_as_much_as_the_one_before() -> None:
    stream = [waiting(arrival, priority=-1) for arrival in range(2, 1_000)]
    assert len(served_before(waiting(1, priority=1), *stream)) == 2 * PRIORITY_ARRIVALS - 1


def test_a_resumed_request_goes_before_those_of_its_priority_that_came_a_little_earlier() -> None:
    resumed = waiting(1_000, resumed=True)
    assert served_before(waiting(1_001 - RESUMED_ARRIVALS), resumed) == [1_000]
    assert served_before(waiting(999 - RESUMED_ARRIVALS), resumed) == []


def test_a_resumed_request_does_not_go_before_a_lower_priority() -> None:
    assert served_before(waiting(900), waiting(1_000, priority=1, resumed=True)) == []


@pytest.mark.parametrize("priority", [-(2**31), 0, 2**31 - 1])
def test_any_priority_has_a_place(priority: int) -> None:
    assert queue_position(1, priority) - queue_position(1, priority - 1) == PRIORITY_ARRIVALS


@examples(50)
@given(st.lists(st.tuples(st.integers(-2, 2), st.booleans()), min_size=1, max_size=400))
def test_a_request_is_overtaken_by_no_more_than_its_priority_is_worth(asked: list[tuple[int, bool]]) -> None:
    line = [waiting(number, priority, resumed) for number, (priority, resumed) in enumerate(asked)]
    for one in line:
        overtaking = [other for other in line if other.arrival > one.arrival and other.order < one.order]
        assert all(other.arrival - one.arrival <= 4 * PRIORITY_ARRIVALS + RESUMED_ARRIVALS for other in overtaking)
