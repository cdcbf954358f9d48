"""A request at the router moves as its table says, and no other way."""

from livescale.services.router.instances import Admission
from livescale.services.router.lifecycle import MOVES, RequestState


def admission() -> Admission:
    return Admission("gateway-0", None, 1, 0.0)


def test_every_state_can_end_and_none_comes_back_from_it() -> None:
    assert all(RequestState.ENDED in MOVES.table[state] for state in RequestState if state is not RequestState.ENDED)
    assert MOVES.table[RequestState.ENDED] == frozenset()


def test_what_is_stopped_while_a_worker_is_asked_is_told_once_it_answered() -> None:
    one = admission()
    one.stop()
    assert (one.state, one.confirmed, one.stopped) == (RequestState.STOPPING, False, True)
    one.confirm()
    assert (one.state, one.confirmed, one.stopped) == (RequestState.STOPPED, True, True)


def test_told_again_it_stays() -> None:
    one = admission()
    one.confirm()
    one.confirm()
    assert one.state is RequestState.RUNNING
    one.stop()
    one.stop()
    one.confirm()
    assert one.state is RequestState.STOPPED
