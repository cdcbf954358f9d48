"""A router that starts anew: workers say what they run, and gateways submit again what waits."""

import pytest

from livescale.services.router.effects import Learn, Lose, StopWork
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.requests import RequestsEnded, Running
from tests.router.examples import NOW, admissions, admit, hear, lease, load, policy, report, request


def running(*ids: str, gateway: str = "gateway-0", tokens: int = 16) -> list[Running]:
    return [Running(request_id=id, gateway=gateway, tokens=tokens) for id in ids]


def test_a_new_worker_is_asked_once_what_it_runs() -> None:
    made = policy()
    assert made.on_report(report("a"), NOW) == [Learn("a", "i-a is new here")]
    assert made.on_report(report("a"), NOW) == []


def test_nothing_is_placed_before_everyone_has_said_what_he_runs() -> None:
    made = policy(report("a"))
    made.on_report(report("b"), NOW)
    assert admit(made, request("r-1")) == []
    made.learned("b", running("other"), NOW)
    assert admissions(made.dispatch(NOW)) == [("r-1", "a")]


def test_another_model_does_not_wait_for_it() -> None:
    made = policy(report("a", model="n"))
    made.on_report(report("b"), NOW)
    assert admit(made, request("r-1", model="n")) == [("r-1", "a")]


def test_what_runs_is_not_started_again_whichever_is_heard_first() -> None:
    made = policy()
    made.on_report(report("a"), NOW)
    made.submit(request("early"), NOW)
    made.learned("a", running("early", "late"), NOW)
    assert made.runs_at("late") == "a"
    with pytest.raises(Refusal, match="already here"):
        made.submit(request("late"), NOW)
    assert made.dispatch(NOW) == []
    assert made.depths()["m"] == 0


def test_what_was_taken_over_counts_and_leaves_like_any_other() -> None:
    made = policy()
    made.on_report(report("a", load(running=2, used=8, blocks=9)), NOW)
    made.learned("a", running("r-1", "r-2"), NOW)
    made.on_report(report("a", load(running=2, used=8, blocks=9)), NOW)
    assert made.loads(NOW)[0].running == 2
    assert admit(made, request("r-3")) == []
    made.on_ended(RequestsEnded(worker="a", request_ids=["r-1"]))
    assert admissions(made.dispatch(NOW)) == [("r-3", "a")]
    assert made.cancel("r-2") == [StopWork("a", "r-2", "cancelled")]


def test_what_ended_before_the_answer_that_still_has_it_is_not_taken_over() -> None:
    made = policy()
    made.on_report(report("a"), NOW)
    made.on_ended(RequestsEnded(worker="a", request_ids=["r-1"]))
    made.learned("a", running("r-1", "r-2"), NOW)
    assert [made.runs_at(id) for id in ("r-1", "r-2")] == [None, "a"]


def test_what_has_ended_is_not_taken_over_from_an_answer_that_comes_late() -> None:
    made = policy(report("a"))
    assert admit(made, request("r-1")) == [("r-1", "a")]
    made.on_ended(RequestsEnded(worker="a", request_ids=["r-1"]))
    made.learned("a", running("r-1"), NOW)
    assert made.runs_at("r-1") is None
    assert admit(made, request("r-1")) == [("r-1", "a")]
    made.learned("a", running("r-1"), NOW)
    assert made.runs_at("r-1") == "a"


@pytest.mark.parametrize("moves_first", [False, True])
def test_what_ended_before_this_router_listened_is_not_counted_where_it_is_said_to_have_gone(moves_first: bool) -> None:
    made = policy()
    made.on_report(report("a", load(running=1)), NOW)
    made.on_report(report("b"), NOW)
    made.learned("a", running("r-1"), NOW)
    moved = RequestsMoved(worker="b", previous="a", request_ids=["r-1"])
    if moves_first:
        made.on_moved(moved, NOW)
        made.learned("b", [], NOW, ended=["r-0", "r-1"])
    else:
        made.learned("b", [], NOW, ended=["r-0", "r-1"])
        made.on_moved(moved, NOW)
    made.check_invariants()
    assert made.runs_at("r-1") is None
    assert sum(one.running for one in made.loads(NOW)) == 0


def test_what_is_given_anew_to_a_worker_where_it_once_ended_is_counted() -> None:
    made = policy(report("a"))
    made.submit(request("r-1"), NOW)
    made.dispatch(NOW)
    made.learned("a", [], NOW, ended=["r-1"])
    made.admitted("a", "r-1")
    assert made.runs_at("r-1") == "a"


def test_what_was_taken_over_is_lost_with_its_worker_and_stopped_with_its_gateway() -> None:
    made = policy()
    made.on_report(report("a"), NOW)
    made.learned("a", [*running("r-1"), *running("r-2", gateway="gateway-1")], NOW)
    stopped = made.on_lease(lease("gateway-1", "dead", service="gateway"))
    assert stopped == [StopWork("a", "r-2", "gateway gateway-1 is gone")]
    assert made.on_lease(lease("a", "dead")) == [Lose("gateway-0", "r-1", "a is gone: said so")]


def test_an_answer_of_one_who_left_meanwhile_is_nothing() -> None:
    made = policy()
    made.on_report(report("a"), NOW)
    made.on_lease(lease("a", "dead"))
    made.learned("a", running("r-1"), NOW)
    assert made.runs_at("r-1") is None
    assert hear(made, report("a", epoch=2)) == []
    assert admit(made, request("r-1")) == [("r-1", "a")]


def test_what_two_workers_run_is_in_the_books_of_one() -> None:
    made = policy(report("a"), report("b"))
    admit(made, request("r-1"))
    made.on_report(report("b", epoch=2), NOW)
    made.learned("b", running("r-1", "r-2"), NOW)
    made.check_invariants()
    assert (made.runs_at("r-1"), made.runs_at("r-2")) == ("a", "b")
    made.on_lease(lease("a", "dead"))
    assert made.submit(request("r-1", generated=[1]), NOW) == 0, "whoever resumes it is not told that it runs"


def test_a_request_that_is_submitted_again_leaves_the_queue_once_it_is_heard_where_it_has_moved() -> None:
    made = policy(report("a"), report("b"))
    assert admit(made, request("r-1")) == [("r-1", "a")]
    hear(made, report("a", state="spare", instance=None, model=None))
    made.submit(request("r-1"), NOW)
    made.on_moved(RequestsMoved(worker="b", previous="a", request_ids=["r-1"]), NOW)
    made.check_invariants()
    assert (made.runs_at("r-1"), made.depths()["m"]) == ("b", 0)


def test_a_move_that_is_told_twice_counts_once_though_its_worker_is_asked_anew_between() -> None:
    made = policy(report("a"), report("b"))
    assert admit(made, request("r-1")) == [("r-1", "a")]
    moved = RequestsMoved(worker="b", previous="a", request_ids=["r-1"])
    made.on_moved(moved, NOW)
    hear(made, report("b", state="spare", instance=None, model=None))  # of before, and it comes late
    made.on_report(report("b"), NOW)
    made.learned("b", running("r-1"), NOW)
    made.on_moved(moved, NOW)
    made.check_invariants()
    assert made.runs_at("r-1") == "b"
