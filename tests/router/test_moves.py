"""Requests of instances that drain go to others that have room, each to one, and those that wait come first."""

import pytest
from msgspec.structs import replace

from livescale.services.router.effects import AdmitTo, Effect, MoveRequest, StopWork
from livescale.services.router.moves import MOST_AT_ONCE, RETRY_SECONDS
from livescale.services.router.policy import RouterPolicy
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import EngineLoad, WorkerReport
from livescale.shared.messages.requests import RequestsEnded, Running
from tests.router.examples import NOW, entry, hear, lease, load, policy, report, request

AMPLE = load(slots=20)


def drains(worker: str, running: int = 1, used: int = 3, **more: object) -> WorkerReport:
    return report(worker, load(slots=20, running=running, used=used), state="draining", **more)


def draining(*others: WorkerReport, count: int = 1) -> RouterPolicy:
    """A worker a that has so many requests and drains, beside others."""
    made = policy(report("a", AMPLE))
    for number in range(count):
        made.submit(request(f"r{number}"), NOW)
    for effect in made.dispatch(NOW):
        assert isinstance(effect, AdmitTo)
        made.admitted(effect.worker, effect.request.request_id)
    for other in others:
        hear(made, other)
    hear(made, drains("a", count, 3 * count))
    return made


def moves(made: RouterPolicy, now: float = NOW) -> list[MoveRequest]:
    effects = made.dispatch(now)
    made.check_invariants()
    return [effect for effect in effects if isinstance(effect, MoveRequest)]


def places(found: list[MoveRequest]) -> list[tuple[str, str]]:
    return [(one.request_id, one.decode) for one in found]


def take(made: RouterPolicy, move: MoveRequest) -> list[Effect]:
    """Both the answer of the worker, and the word that the request has moved."""
    moved = RequestsMoved(worker=move.decode, previous=move.worker, request_ids=[move.request_id])
    effects = made.on_moved(moved, NOW)
    made.moved(move, None, NOW)
    made.check_invariants()
    return effects


def test_what_an_instance_has_that_drains_goes_to_the_one_with_most_free_blocks() -> None:
    made = draining(report("b", load(slots=20, used=50)), report("c", AMPLE))
    (move,) = moves(made)
    assert (move.worker, move.epoch, move.request_id, move.decode) == ("a", 1, "r0", "c")
    assert move.reason == "a drains, and c has 100 free blocks"
    assert moves(made) == []
    take(made, move)
    assert made.runs_at("r0") == "c"
    assert moves(made) == []


def test_instances_that_decode_come_first_and_those_that_prefill_last() -> None:
    roles = {"b": "prefill", "c": "colocated", "d": "decode"}
    reports = [report(id, AMPLE, role=role) for id, role in roles.items()]
    assert places(moves(draining(*reports))) == [("r0", "d")]
    assert places(moves(draining(*reports[:2]))) == [("r0", "c")]
    assert places(moves(draining(*reports[:1]))) == [("r0", "b")]


def test_those_on_the_same_machine_come_first() -> None:
    made = policy(report("a", AMPLE, host="h"))
    made.submit(request("r0"), NOW)
    made.dispatch(NOW)
    made.admitted("a", "r0")
    for other in (report("b", AMPLE, host="g"), report("c", load(slots=20, used=50), host="h")):
        hear(made, other)
    hear(made, drains("a", host="h"))
    assert places(moves(made)) == [("r0", "c")]


def test_only_instances_that_serve_the_same_version_and_have_room_take_any() -> None:
    full: list[EngineLoad] = [load(slots=1, running=1), load(slots=20, used=98), load(slots=20, full=True)]
    others = [report("b", one) for one in full]
    others += [report("b", AMPLE, state="loading"), drains("b"), report("b", AMPLE, state="live")]
    others += [report("b", AMPLE, version="other"), report("b", AMPLE, model="n")]
    for other in others:
        assert moves(draining(other)) == [], other


def test_what_is_on_its_way_is_not_free_and_takes_as_much_as_requests_have_on_average() -> None:
    made = draining(report("b", load(slots=20, blocks=7)), count=3)
    hear(made, drains("a", 3, 9))  # each has 3 blocks
    assert places(moves(made)) == [("r0", "b"), ("r1", "b")]


def test_a_few_move_at_once_and_then_the_next() -> None:
    made = draining(report("b", AMPLE), count=MOST_AT_ONCE + 2)
    first = moves(made)
    assert len(first) == MOST_AT_ONCE
    take(made, first[0])
    assert places(moves(made)) == [(f"r{MOST_AT_ONCE}", "b")]


def test_those_that_wait_for_an_instance_come_first() -> None:
    made = draining(report("b", load(slots=1, running=1)))
    made.submit(request("waits"), NOW)
    assert moves(made) == []
    hear(made, report("b", load(slots=2, running=1)))
    effects = made.dispatch(NOW)
    assert [type(effect) for effect in effects] == [AdmitTo]


def test_one_that_stays_is_asked_again_later_unless_it_cannot_move() -> None:
    made = draining(report("b", AMPLE))
    (move,) = moves(made)
    made.moved(move, 429, NOW)
    assert moves(made, NOW + RETRY_SECONDS / 2) == []
    (again,) = moves(made, NOW + RETRY_SECONDS)
    made.moved(again, 409, NOW)
    assert moves(made, NOW + 1000) == []


def test_what_stays_is_promised_to_nobody() -> None:
    made = draining(report("b", load(slots=1)))
    (move,) = moves(made)
    made.submit(request("next"), NOW)
    assert [effect for effect in made.dispatch(NOW) if isinstance(effect, AdmitTo)] == []
    made.moved(move, 429, NOW)
    assert [effect.worker for effect in made.dispatch(NOW) if isinstance(effect, AdmitTo)] == ["b"]


def test_what_is_asked_cancelled_or_given_to_another_already_does_not_move() -> None:
    made = draining(report("b", AMPLE), count=2)
    assert made.cancel("r0") == [StopWork("a", "r0", "cancelled")]
    assert places(moves(made)) == [("r1", "b")]
    asked = policy(report("a", AMPLE))
    asked.submit(request("r0"), NOW)
    asked.dispatch(NOW)  # and no answer yet
    hear(asked, report("b", AMPLE))
    hear(asked, drains("a"))
    assert moves(asked) == []
    asked.admitted("a", "r0")
    assert places(moves(asked)) == [("r0", "b")]


def test_one_that_is_cancelled_on_its_way_is_stopped_where_it_arrives() -> None:
    made = draining(report("b", AMPLE))
    (move,) = moves(made)
    assert made.cancel("r0") == [StopWork("a", "r0", "cancelled")]
    assert take(made, move) == [StopWork("b", "r0", "its client waits no longer")]


def test_one_that_ends_on_its_way_or_there_holds_nothing() -> None:
    for worker in ("a", "b"):
        made = draining(report("b", load(slots=1)))
        (move,) = moves(made)
        made.on_ended(RequestsEnded(worker=worker, request_ids=["r0"]))
        made.moved(move, 429, NOW)
        assert made.runs_at("r0") is None
        made.submit(request("next"), NOW)
        assert [effect.worker for effect in made.dispatch(NOW) if isinstance(effect, AdmitTo)] == ["b"]


def test_requests_that_an_earlier_router_admitted_move_too() -> None:
    made = policy(report("b", AMPLE))
    made.on_report(drains("a"), NOW)
    assert moves(made) == []
    made.learned("a", [Running(request_id="old", gateway="gateway-0", tokens=12)], NOW)
    assert places(moves(made)) == [("old", "b")]


def test_who_is_recalled_or_dead_hands_nothing_over() -> None:
    made = draining(report("b", AMPLE), count=MOST_AT_ONCE + 1)
    first = moves(made)
    hear(made, report("a", AMPLE))
    made.moved(first[0], 429, NOW)
    assert moves(made, NOW + 2 * RETRY_SECONDS) == []
    made = draining(report("b", AMPLE))
    (move,) = moves(made)
    made.on_lease(lease("a", "dead"))
    made.moved(move, 503, NOW)
    assert moves(made, NOW + 2 * RETRY_SECONDS) == []


def began_live(*others: WorkerReport, disaggregates: bool = True, role: str = "prefill") -> RouterPolicy:
    """A worker a that was given a request while it was live, and one since; it serves, beside others."""
    made = policy(report("a", AMPLE, state="live", role=role), disaggregates=disaggregates)
    for id, state in (("early", "live"), ("late", "serving")):
        hear(made, report("a", AMPLE, state=state, role=role))
        made.submit(request(id), NOW)
        for effect in made.dispatch(NOW):
            assert isinstance(effect, AdmitTo)
            made.admitted("a", id)
    for other in others:
        hear(made, other)
    return made


def test_what_was_given_to_an_instance_that_loaded_is_decoded_elsewhere_once_that_serves() -> None:
    made = began_live(report("b", AMPLE, role="prefill"), report("c", AMPLE, role="decode"))
    (move,) = moves(made)
    assert (move.request_id, move.decode) == ("early", "c")
    assert move.reason == "a prefills, and c has 100 free blocks"
    made.submit(replace(request("waits"), version="other"), NOW)
    take(made, move)
    assert made.runs_at("early") == "c"
    assert moves(made) == []


def test_it_stays_where_nobody_else_decodes_it_or_roles_count_for_nothing() -> None:
    decode = report("c", AMPLE, role="decode")
    assert moves(began_live(report("b", AMPLE, role="prefill"))) == []
    assert moves(began_live(decode, disaggregates=False)) == []
    assert moves(began_live(decode, role="decode")) == []
    assert moves(began_live(decode, role="colocated")) == []


def test_a_helper_that_took_such_a_request_over_gives_it_away_too() -> None:
    made = began_live(report("b", AMPLE, role="prefill"))
    made.on_moved(RequestsMoved(worker="b", previous="a", request_ids=["early"]), NOW)
    hear(made, report("c", AMPLE, role="decode"))
    (move,) = moves(made)
    assert (move.worker, move.request_id, move.decode) == ("b", "early", "c")


@pytest.mark.parametrize("before", ["colocated", "decode"])
def test_what_an_instance_took_in_another_role_is_decoded_elsewhere_once_it_prefills(before: str) -> None:
    made = policy(report("a", AMPLE, role=before), disaggregates=True)
    made.submit(request("early"), NOW)
    made.dispatch(NOW)
    made.admitted("a", "early")
    hear(made, report("c", AMPLE, role="decode"))
    assert moves(made) == []
    hear(made, report("a", AMPLE, role="prefill"))
    made.submit(request("late"), NOW)
    effects = made.dispatch(NOW)
    assert [one.decode for one in effects if isinstance(one, AdmitTo)] == ["c"]
    assert places([one for one in effects if isinstance(one, MoveRequest)]) == [("early", "c")]


def test_a_suspected_or_unknown_instance_takes_nothing() -> None:
    made = draining(report("b", AMPLE))
    made.on_lease(lease("b", "suspect"))
    assert moves(made) == []
    made = draining()
    made.on_report(report("b", AMPLE), NOW)  # and has not said what it runs
    assert moves(made) == []


def test_a_model_that_is_replaced_is_finished_where_it_runs_unless_another_has_that_version() -> None:
    made = draining(report("b", AMPLE, version="new"))
    made.on_models([replace(entry("m"), version="new"), entry("n")])
    assert moves(made) == []


def test_what_another_was_to_decode_and_did_not_moves_as_its_instance_drains() -> None:
    made = policy(report("p", AMPLE, role="prefill"), report("d", load(slots=1), role="decode"), disaggregates=True)
    made.submit(request("r0"), NOW)
    (effect,) = made.dispatch(NOW)
    assert isinstance(effect, AdmitTo)
    assert effect.decode == "d"
    made.admitted("p", "r0")
    hear(made, drains("p", role="prefill"))
    assert moves(made) == []  # it is on its way to d as it is
    made.on_moved(RequestsMoved(worker="p", previous="p", request_ids=["r0"]), NOW)
    assert made.runs_at("r0") == "p"
    assert places(moves(made)) == [("r0", "d")]
