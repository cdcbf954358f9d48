from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.policy.priority_queue import PRIORITY_ARRIVALS, queue_position

PRIORITIES = st.integers(-(2**31), 2**31 - 1)


@given(PRIORITIES, st.integers(0, 10**9))
def test_a_priority_of_one_less_is_worth_so_many_arrivals(priority: int, arrival: int) -> None:
    assert queue_position(arrival, priority) - queue_position(arrival, priority - 1) == PRIORITY_ARRIVALS


@given(PRIORITIES, st.integers(0, 10**9), st.integers(0, PRIORITY_ARRIVALS - 1))
def test_among_so_many_arrivals_the_lower_priority_goes_first(priority: int, arrival: int, later: int) -> None:
    assert queue_position(arrival + later, priority) < queue_position(arrival, priority + 1)


@given(PRIORITIES, st.integers(0, 10**9), st.integers(1, 10**6))
def test_within_a_priority_who_came_first_goes_first(priority: int, arrival: int, later: int) -> None:
    assert queue_position(arrival, priority) < queue_position(arrival + later, priority)
