"""The states of a request at the router: each can end, and what is told again changes nothing."""

from hypothesis import given
from hypothesis import strategies as st

from livescale.services.router.admitted import MOVES, AdmissionState, AdmittedRequest, Promises


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
    for request, kept in steps:
        if kept is None or request in promised:
            promises.drop(request)
            promised.pop(request, None)
        else:
            promises.keep(request, *kept)
            promised[request] = kept
        for worker in ("w-0", "w-1", "w-2"):
            blocks = [blocks for to, blocks in promised.values() if to == worker]
            assert (promises.requests(worker), promises.blocks(worker)) == (len(blocks), sum(blocks))
