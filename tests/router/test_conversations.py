"""Where conversations go: to the worker that may still have their KV."""

import pytest

from livescale.services.router.routing import MOST_CONVERSATIONS, ConversationPlaces
from livescale.shared.messages.live import RequestsMoved
from tests.router.examples import NOW, admit, hear, lease, load, policy, report, request


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
