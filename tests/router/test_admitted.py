"""The states of a request at the router: each can end, and what is told again changes nothing."""

from livescale.services.router.admitted import MOVES, AdmissionState, AdmittedRequest


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
