from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.messages.requests import PRIORITY_ARRIVALS, Submit, arrived, leaving, queue_position

MOMENTS = st.floats(1e6, 2e6)
PRIORITIES = st.integers(-(2**31), 2**31 - 1)


def request(deadline: float) -> Submit:
    return Submit(request_id="r", model="m", gateway="g", prompt=[1], deadline=deadline)


def test_a_clock_that_is_ahead_does_not_prolong_a_request() -> None:
    """The sender's clock is an hour ahead: its deadline is far away here, the time it had left is not."""
    sent = leaving(request(deadline=1_003_610.0), wall=1_003_600.0)
    assert arrived(sent, wall=1_000_000.0).deadline == 1_000_010.0


def test_a_request_without_its_time_left_keeps_its_deadline() -> None:
    assert arrived(request(5.0), wall=9.0).deadline == 5.0


def test_a_request_past_its_deadline_has_nothing_left() -> None:
    assert leaving(request(5.0), wall=9.0).timeout_s == 0.0


@given(MOMENTS, MOMENTS, MOMENTS)
def test_no_hop_makes_a_deadline_later(deadline: float, here: float, there: float) -> None:
    received = arrived(leaving(request(deadline), here), there)
    assert received.deadline <= deadline
    assert received.deadline <= there + max(0.0, deadline - here)


@given(PRIORITIES, st.integers(0, 10**9))
def test_a_priority_of_one_less_is_worth_so_many_arrivals(priority: int, arrival: int) -> None:
    assert queue_position(arrival, priority) - queue_position(arrival, priority - 1) == PRIORITY_ARRIVALS


@given(PRIORITIES, st.integers(0, 10**9), st.integers(0, PRIORITY_ARRIVALS - 1))
def test_among_so_many_arrivals_the_lower_priority_goes_first(priority: int, arrival: int, later: int) -> None:
    assert queue_position(arrival + later, priority) < queue_position(arrival, priority + 1)


@given(PRIORITIES, st.integers(0, 10**9), st.integers(1, 10**6))
def test_within_a_priority_who_came_first_goes_first(priority: int, arrival: int, later: int) -> None:
    assert queue_position(arrival, priority) < queue_position(arrival + later, priority)
