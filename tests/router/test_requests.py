"""Requests at the router: the order of those that wait, and the states of those that were given to workers.

Lower priorities and resumed requests go first, and no request waits for ever. Each state can end, and what is told
again changes nothing.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.router.requests import (
    MOVES,
    RESUMED_ARRIVALS,
    AdmissionState,
    AdmittedRequest,
    Promises,
    Queue,
    Waiting,
)
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


def admission() -> AdmittedRequest:
    return AdmittedRequest("gateway-0", None, 1, 0.0)


def test_every_state_can_end_and_none_comes_back_from_it() -> None:
    assert all(
        AdmissionState.ENDED in MOVES.table[state] for state in AdmissionState if state is not AdmissionState.ENDED
    )
    assert MOVES.table[AdmissionState.ENDED] == frozenset()


def test_what_is_stopped_while_a_worker_is_asked_is_told_once_it_answered() -> None:
    one = admission()
    one.stop()
    assert (one.state, one.confirmed, one.stopped) == (AdmissionState.STOPPING, False, True)
    one.confirm()
    assert (one.state, one.confirmed, one.stopped) == (AdmissionState.STOPPED, True, True)


def test_told_again_it_stays() -> None:
    one = admission()
    one.confirm()
    one.confirm()
    assert one.state is AdmissionState.RUNNING
    one.stop()
    one.stop()
    one.confirm()
    assert one.state is AdmissionState.STOPPED


WORKERS = st.sampled_from(["w-0", "w-1"])
STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.tuples(WORKERS, st.integers(0, 9))), max_size=12)


@given(STEPS)
def test_what_is_promised_to_a_worker_is_what_was_kept_and_not_dropped(
    steps: list[tuple[str, tuple[str, int] | None]],
) -> None:
    promises, promised = Promises(), dict[str, tuple[str, int]]()
    for name, kept in steps:
        if kept is None or name in promised:
            promises.drop(name)
            promised.pop(name, None)
        else:
            promises.keep(name, *kept)
            promised[name] = kept
        for worker in ("w-0", "w-1", "w-2"):
            blocks = [blocks for to, blocks in promised.values() if to == worker]
            assert (promises.requests(worker), promises.blocks(worker)) == (len(blocks), sum(blocks))
