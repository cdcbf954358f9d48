"""Which workers get requests, what becomes of those of a worker that is gone, and where conversations go."""

from dataclasses import replace

import pytest

from livescale.services.router.effects import AdmitTo, Lose, StopWork
from livescale.services.router.fleet import MOST_CONVERSATIONS, ConversationPlaces
from livescale.services.router.parted import HEARD_SECONDS
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.requests import RequestsEnded, Running
from tests.router.examples import NOW, admissions, admit, hear, lease, load, policy, report, request


def test_a_conversations_next_request_goes_where_the_last_one_went() -> None:
    made = policy(report("a", load(slots=4)), report("b", load(slots=4)))
    assert admit(made, request("0"), request("1", context_id="talk")) == [("0", "a"), ("1", "b")]
    assert admit(made, request("2")) == [("2", "a")]
    assert admit(made, request("3", context_id="talk"), request("4", context_id="talk")) == [("3", "b"), ("4", "b")]


def test_a_worker_without_a_free_slot_loses_it() -> None:
    made = policy(report("a", load(slots=1)), report("b", load(slots=1)), look_ahead=1)
    talk = [request(str(number), context_id="talk") for number in range(3)]
    assert admit(made, *talk[:2]) == [("0", "a"), ("1", "b")]
    assert admit(made, talk[2]) == [("2", "a")], "where all slots are taken the least loaded has it"


def test_a_worker_without_kv_blocks_loses_it() -> None:
    made = policy(report("a", load(slots=9, blocks=8)), report("b", load(slots=9, blocks=8, used=5)))
    assert admit(made, request("0", prompt=24, context_id="talk")) == [("0", "a")]
    assert admit(made, request("1", prompt=10, context_id="talk")) == [("1", "b")]


def test_a_worker_that_is_gone_or_suspected_is_not_waited_for() -> None:
    made = policy(report("a"), report("b"))
    assert admit(made, request("0", context_id="talk")) == [("0", "a")]
    made.on_lease(lease("a", "suspect"))
    assert admit(made, request("1", context_id="talk")) == [("1", "b")]
    made.on_lease(lease("b", "dead"))
    hear(made, report("a"), NOW)
    assert admit(made, request("2", context_id="talk")) == [("2", "a")]


@pytest.mark.parametrize(("moved", "goes"), [((), "a"), (("0", "gone"), "b"), (("gone",), "a")])
def test_it_follows_a_request_that_another_worker_took_over(moved: tuple[str, ...], goes: str) -> None:
    made = policy(report("a", load(slots=4)), report("b", load(slots=4)))
    assert admit(made, request("0", context_id="talk")) == [("0", "a")]
    made.on_moved(RequestsMoved(worker="b", previous="a", request_ids=list(moved)), NOW)
    assert admit(made, request("1", context_id="talk")) == [("1", goes)]


def test_a_worker_that_took_the_request_over_and_is_gone_is_not_waited_for() -> None:
    made = policy(report("a", load(slots=4)), report("b", load(slots=4)))
    assert admit(made, request("0", context_id="talk")) == [("0", "a")]
    made.on_lease(lease("b", "dead"))
    made.on_moved(RequestsMoved(worker="b", previous="a", request_ids=["0"]), NOW)
    assert admit(made, request("1", context_id="talk")) == [("1", "a")]


def test_names_are_a_models_own() -> None:
    made = policy(report("a"), report("b"), report("c", model="n"), report("d", model="n"))
    assert admit(made, request("0", context_id="talk"), request("1", model="n", context_id="talk")) == [
        ("0", "a"),
        ("1", "c"),
    ]


def test_what_was_quiet_for_longest_is_forgotten() -> None:
    contexts = ConversationPlaces()
    for number in range(MOST_CONVERSATIONS + 1):
        contexts.went(request("r", context_id=str(number)), "a")
    assert contexts.last(request("r", context_id="0")) is None
    assert contexts.last(request("r", context_id="1")) == "a"
    assert contexts.last(request("r")) is None


def test_a_dead_worker_loses_what_it_had_started() -> None:
    made = policy(report("a"), report("b"))
    admit(made, request("r-1"), request("r-2"))
    assert made.on_lease(lease("a", "dead")) == [Lose("gateway-0", "r-1", "a is gone: said so")]
    assert admit(made, request("r-1", generated=[3])) == [("r-1", "b")]


def test_a_dead_worker_is_not_heard_any_more() -> None:
    made = policy(report("a"))
    made.on_lease(lease("a", "dead"))
    hear(made, report("a"), NOW)
    assert admit(made, request("r-1")) == []
    hear(made, report("a", epoch=2), NOW)
    assert admissions(made.dispatch(NOW)) == [("r-1", "a")]


def test_a_worker_that_joined_anew_has_lost_what_it_had() -> None:
    made = policy(report("a"))
    admit(made, request("r-1"))
    assert hear(made, report("a", epoch=2), NOW) == [Lose("gateway-0", "r-1", "a no longer serves i-a")]
    admit(made, request("r-2"))
    assert made.on_lease(lease("a", "alive", epoch=3)) == [Lose("gateway-0", "r-2", "a is gone: said so")]


def test_a_suspected_worker_gets_nothing_new_and_loses_nothing() -> None:
    made = policy(report("a"))
    admit(made, request("r-1"))
    assert made.on_lease(lease("a", "suspect")) == []
    assert admit(made, request("r-2")) == []
    made.on_lease(lease("a", "alive"))
    assert admissions(made.dispatch(NOW)) == [("r-2", "a")]


def test_a_suspect_that_is_heard_again_gets_requests_though_the_registry_s_word_of_it_is_lost() -> None:
    made = policy(report("a"))
    made.on_lease(lease("a", "suspect"))
    assert admit(made, request("r-1")) == []
    hear(made, report("a"), NOW)
    assert admissions(made.dispatch(NOW)) == [("r-1", "a")]


def test_a_draining_instance_finishes_what_it_has_and_gets_nothing_new() -> None:
    made = policy(report("a"))
    admit(made, request("r-1"))
    assert hear(made, report("a", load(running=1), state="draining"), NOW) == []
    assert admit(made, request("r-2")) == []
    made.on_ended(RequestsEnded(worker="a", request_ids=["r-1"]))
    assert hear(made, report("a", state="spare", instance=None, model=None), NOW) == []


def gone(worker: str) -> WorkerReport:
    return report(worker, state="spare", instance=None, model=None)


def test_an_end_that_comes_after_the_report_of_a_drained_worker_loses_nothing() -> None:
    made = policy(report("a"))
    admit(made, request("r-1"))
    assert hear(made, gone("a"), NOW) == []
    made.on_ended(RequestsEnded(worker="a", request_ids=["r-1"]))
    assert made.expire(NOW + HEARD_SECONDS) == []


def test_a_move_that_comes_after_the_report_of_a_drained_worker_is_followed() -> None:
    made = policy(report("a"))
    admit(made, request("r-1"))
    hear(made, report("b"), NOW)
    assert hear(made, gone("a"), NOW) == []
    assert made.on_moved(RequestsMoved(worker="b", previous="a", request_ids=["r-1"]), NOW) == []
    assert made.runs_at("r-1") == "b"
    assert made.expire(NOW + HEARD_SECONDS) == []


def test_what_a_drained_worker_says_nothing_of_is_lost_after_a_while() -> None:
    made = policy(report("a"))
    admit(made, request("r-1"), request("left"))
    hear(made, gone("a"), NOW)
    assert made.cancel("left") == []
    assert made.expire(NOW + HEARD_SECONDS - 0.1) == []
    why = "a ended its instance, and does not have it"
    assert made.expire(NOW + HEARD_SECONDS) == [Lose("gateway-0", "r-1", why)], "and nobody waits for the other"
    assert made.expire(NOW + HEARD_SECONDS) == []


def test_what_another_worker_says_it_runs_is_not_lost_with_the_one_that_drained() -> None:
    made = policy(report("a"))
    admit(made, request("r-1"))
    hear(made, gone("a"), NOW)
    hear(made, report("b"), NOW)
    made.learned("b", [Running(request_id="r-1", gateway="gateway-0", tokens=10)], NOW)
    assert made.expire(NOW + HEARD_SECONDS) == []


@pytest.mark.parametrize("state", ["loading", "spare"])
def test_only_serving_instances_get_requests(state: str) -> None:
    made = policy(report("a", state=state))
    assert admit(made, request("r-1")) == []


def test_only_the_leading_rank_gets_requests() -> None:
    made = policy(report("a", rank=1, instance="i"), report("b", rank=0, instance="i"))
    assert admit(made, request("r-1"), request("r-2"), request("r-3")) == [("r-1", "b"), ("r-2", "b")]


def test_a_dead_gateway_takes_its_requests_with_it() -> None:
    made = policy(report("a", load(slots=1)))
    admit(made, request("runs"), request("waits"), request("others", gateway="gateway-1"))
    assert made.on_lease(lease("gateway-0", "dead", service="gateway")) == [
        StopWork("a", "runs", "gateway gateway-0 is gone")
    ]
    made.on_ended(RequestsEnded(worker="a", request_ids=["runs"]))
    assert admissions(made.dispatch(NOW)) == [("others", "a")]


def test_what_a_router_slept_through_makes_no_worker_idle() -> None:
    made = policy(report("a"))
    admit(made, request("r-1"))
    hear(made, report("a"), NOW + 0.1)
    made.was_away(NOW + 5)
    assert hear(made, report("a"), NOW + 5) == []
    assert hear(made, report("a"), NOW + 8) == [Lose("gateway-0", "r-1", "a does not have it")]


def test_a_worker_that_is_idle_for_long_has_lost_what_the_router_thinks_it_has() -> None:
    made = policy(report("a"))
    admit(made, request("r-1"))
    hear(made, report("a", load(running=1)), NOW + 0.1)
    assert hear(made, report("a"), NOW + 1) == []
    assert hear(made, report("a"), NOW + 2.9) == []
    assert hear(made, report("a"), NOW + 3) == [Lose("gateway-0", "r-1", "a does not have it")]


def test_an_answer_of_a_worker_that_is_gone_changes_nothing() -> None:
    made = policy(report("a"))
    made.submit(request("r-1"), NOW)
    [effect] = made.dispatch(NOW)
    assert isinstance(effect, AdmitTo)
    made.on_lease(lease("a", "dead"))
    assert made.admitted("a", "r-1") == []
    assert made.refused(effect, 503, "gone") == []
    assert made.refused(replace(effect, worker="never"), 503, "gone") == []
