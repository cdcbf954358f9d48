"""Instances that take requests while they load, and requests that move from them to those that help."""

import pytest
from msgspec.structs import replace

from livescale.services.router.admission import WorkerCapacity
from livescale.services.router.effects import Learn, Lose, StopWork
from livescale.services.router.fleet import HEARD_SECONDS
from livescale.services.router.policy import RouterPolicy
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import Holding, WorkerReport
from livescale.shared.messages.requests import RequestsEnded, Running
from tests.router.examples import NOW, admissions, admit, hear, lease, load, policy, report, request


def live(worker: str = "t", slots: int = 2) -> RouterPolicy:
    """A policy with two serving instances, of which one helps the live one."""
    return policy(
        report("h", load(slots=slots), helping=[worker]),
        report("s", load(running=1, slots=2)),
        report(worker, load(slots=slots), state="live"),
    )


def moved(made: RouterPolicy, *ids: str, previous: str = "t", worker: str = "h", now: float = NOW) -> list[object]:
    effects = made.on_moved(RequestsMoved(worker=worker, previous=previous, request_ids=list(ids)), now)
    made.check_invariants()
    return list(effects)


def places(made: RouterPolicy, *ids: str) -> list[str | None]:
    return [made.runs_at(id) for id in ids]


def test_while_a_live_instance_has_room_those_that_help_it_get_nothing_new() -> None:
    made = live()
    requests = [request(f"r{number}") for number in range(6)]
    assert admit(made, *requests) == [("r0", "t"), ("r1", "s"), ("r2", "t"), ("r3", "h"), ("r4", "h")]


def test_an_instance_that_helps_another_model_s_or_nobody_any_more_is_like_any_other() -> None:
    made = policy(
        report("h", load(running=1, slots=4), helping=["x"]), report("t", load(running=2, slots=4), state="live")
    )
    assert admit(made, request("r0")) == [("r0", "h")]


def test_a_request_that_moved_is_lost_with_its_new_worker_and_not_with_the_old_one() -> None:
    made = live()
    admit(made, request("r0"))
    assert moved(made, "r0") == []
    assert places(made, "r0") == ["h"]
    assert made.on_lease(lease("t", "dead")) == []
    assert made.on_lease(lease("h", "dead")) == [Lose("gateway-0", "r0", "h is gone: said so")]


def test_it_takes_a_slot_where_it_is_now() -> None:
    made = policy(report("h", load(slots=1), helping=["t"]), report("t", load(slots=1), state="live"))
    assert admit(made, request("r0")) == [("r0", "t")]
    moved(made, "r0")
    assert admit(made, request("r1"), request("r2")) == [("r1", "t")]
    made.on_ended(RequestsEnded(worker="h", request_ids=["r0"]))
    assert admissions(made.dispatch(NOW)) == [("r2", "h")]


@pytest.mark.parametrize("reports_first", [True, False])
def test_the_move_may_come_before_or_after_the_reports_that_show_it(reports_first: bool) -> None:
    made = policy(report("h", load(slots=1), helping=["t"]), report("t", load(slots=1), state="live"))
    admit(made, request("r0"))
    if not reports_first:
        moved(made, "r0")
    hear(made, report("h", load(running=1, used=3, slots=1), helping=["t"]))
    hear(made, report("t", load(slots=1), state="live"))
    if reports_first:
        moved(made, "r0")
    assert places(made, "r0") == ["h"]
    assert admit(made, request("r1"), request("r2")) == [("r1", "t")]


def test_the_move_may_come_before_the_answer_to_its_admission() -> None:
    made = live()
    made.submit(request("r0"), NOW)
    [effect] = made.dispatch(NOW)
    assert moved(made, "r0") == []
    assert made.admitted("t", "r0") == []
    assert places(made, "r0") == ["h"]
    # The answer was lost: it was admitted all the same.
    assert made.refused(effect, 503, "no answer") == []  # type: ignore[arg-type]
    assert places(made, "r0") == ["h"]


def test_the_end_may_come_before_the_move() -> None:
    made = live()
    admit(made, request("r0"))
    made.on_ended(RequestsEnded(worker="h", request_ids=["r0"]))
    assert places(made, "r0") == [None]
    assert moved(made, "r0") == []
    assert places(made, "r0") == [None]


def test_what_ended_at_a_worker_before_and_is_submitted_again_counts_there_once_it_moves_there() -> None:
    made = live()
    made.on_ended(RequestsEnded(worker="h", request_ids=["r0"]))
    admit(made, request("r0"))
    assert moved(made, "r0") == []
    assert places(made, "r0") == ["h"]


def test_what_is_given_anew_stays_there_though_it_is_heard_late_that_it_once_moved_away_and_ended() -> None:
    made = live()
    made.on_ended(RequestsEnded(worker="h", request_ids=["r0"]))
    made.submit(request("r0"), NOW)
    assert admissions(made.dispatch(NOW)) == [("r0", "t")]
    assert moved(made, "r0") == []
    assert places(made, "r0") == ["t"]
    made.admitted("t", "r0")
    made.on_ended(RequestsEnded(worker="t", request_ids=["r0"]))
    assert places(made, "r0") == [None]


def test_what_ends_at_a_worker_that_does_not_have_it_ends_nothing_elsewhere_unless_it_may_have_moved() -> None:
    made = policy(report("a"), report("b"))
    [(_, worker)] = admit(made, request("r0"))
    other = "b" if worker == "a" else "a"
    made.on_ended(RequestsEnded(worker=other, request_ids=["r0"]))
    assert places(made, "r0") == [worker]


def test_the_death_of_the_new_worker_may_come_before_the_move() -> None:
    made = live()
    admit(made, request("r0"))
    made.on_lease(lease("h", "dead"))
    assert moved(made, "r0") == [Lose("gateway-0", "r0", "h took it over and is gone")]


def loading(worker: str) -> WorkerReport:
    return replace(report(worker, state="loading"), load=None)


def test_a_worker_may_take_a_request_over_before_it_says_that_it_serves() -> None:
    """As workers of an execution pipeline do when it is over."""
    made = live()
    admit(made, request("r0"), request("r1"))
    hear(made, loading("n"))
    assert moved(made, "r0", worker="n") == []
    assert places(made, "r0") == ["n"]
    assert [one.running for one in made.loads(NOW) if one.model == "m"] == [2]
    assert made.on_report(report("n", load(running=1, slots=1)), NOW) == [Learn("n", "i-n is new here")]
    made.learned("n", [Running(request_id="r0", gateway="gateway-0", tokens=9)], NOW)
    assert places(made, "r0") == ["n"]
    made.on_ended(RequestsEnded(worker="n", request_ids=["r0"]))
    assert places(made, "r0") == [None]


def test_one_that_loads_gets_nothing_new_and_nobody_waits_for_what_it_has() -> None:
    made = policy(loading("n"), report("a"))
    assert admit(made, request("r0"), request("r1"), request("r2")) == [("r0", "a"), ("r1", "a")]


@pytest.mark.parametrize("state", ["spare", "dead"])
def test_what_it_took_over_is_lost_with_it(state: str) -> None:
    made = live()
    admit(made, request("r0"))
    hear(made, loading("n"))
    moved(made, "r0", worker="n")
    if state == "dead":
        assert made.on_lease(lease("n", "dead")) == [Lose("gateway-0", "r0", "n is gone: said so")]
    else:
        gone = report("n", state="spare", model=None, instance=None)
        assert made.on_report(gone, NOW) == []
        why = "n ended its instance, and does not have it"
        assert made.expire(NOW + HEARD_SECONDS) == [Lose("gateway-0", "r0", why)]


def test_a_live_instance_that_goes_back_to_loading_loses_what_it_has() -> None:
    made = live()
    admit(made, request("r0"))
    assert made.on_report(loading("t"), NOW) == [Lose("gateway-0", "r0", "t no longer serves i-t")]
    assert admit(made, request("r1")) == [("r1", "h")]


def test_what_is_said_of_a_worker_that_died_meanwhile_changes_nothing() -> None:
    made = live()
    admit(made, request("r0"))
    assert made.on_lease(lease("t", "dead")) == [Lose("gateway-0", "r0", "t is gone: said so")]
    assert moved(made, "r0") == []
    assert places(made, "r0") == [None]


def test_a_request_that_nobody_waits_for_is_stopped_where_it_went() -> None:
    made = live()
    admit(made, request("r0"))
    assert made.cancel("r0") == [StopWork("t", "r0", "cancelled")]
    assert moved(made, "r0") == [StopWork("h", "r0", "its client waits no longer")]
    assert made.on_lease(lease("h", "dead")) == []


def test_one_that_was_cancelled_before_its_admission_was_answered_is_stopped_too() -> None:
    made = live()
    made.submit(request("r0"), NOW)
    made.dispatch(NOW)
    assert made.cancel("r0") == []
    assert moved(made, "r0") == [StopWork("h", "r0", "its client waits no longer")]
    assert made.admitted("t", "r0") == []


def test_a_silent_source_does_not_lose_what_it_has_only_just_taken() -> None:
    made = live()
    admit(made, request("r0"))
    hear(made, report("h", helping=["t"]), NOW + 100)
    moved(made, "r0", now=NOW + 100)
    assert hear(made, report("h", helping=["t"]), NOW + 100.1) == []
    assert places(made, "r0") == ["h"]


def test_what_ended_before_it_was_heard_to_be_there_is_not_counted_for_ever() -> None:
    """Its end was lost, and the worker that took it has been idle all along: no report ever showed it."""
    made = live()
    admit(made, request("r0"))
    hear(made, report("h", helping=["t"]), NOW + 100)
    moved(made, "r0", now=NOW + 101)
    assert hear(made, report("h", helping=["t"]), NOW + 102.9) == []
    assert hear(made, report("h", helping=["t"]), NOW + 103) == [Lose("gateway-0", "r0", "h does not have it")]


def test_a_live_instance_that_gives_up_loses_what_is_left_to_it() -> None:
    made = live()
    admit(made, request("r0"), request("r1"), request("r2"))
    moved(made, "r0")
    gone = report("t", state="spare", model=None, instance=None)
    assert made.on_report(gone, NOW) == []
    why = "t ended its instance, and does not have it"
    assert made.expire(NOW + HEARD_SECONDS) == [Lose("gateway-0", "r2", why)]


def test_a_new_router_that_hears_of_a_move_before_the_answer_of_who_gave_away_is_not_misled_by_it() -> None:
    made = policy(report("h"))
    [learn] = made.on_report(report("t", state="live"), NOW)
    assert isinstance(learn, Learn)
    assert moved(made, "r0") == []
    made.learned("t", [Running(request_id=id, gateway="gateway-0", tokens=9) for id in ("r0", "r1")], NOW)
    assert places(made, "r0", "r1") == [None, "t"]


def test_a_new_router_that_hears_of_an_end_before_the_move_to_who_ended_it_counts_it_nowhere() -> None:
    made = policy(report("p"), report("d"))
    made.learned("p", [Running(request_id=id, gateway="gateway-0", tokens=9) for id in ("r0", "r1")], NOW)
    made.learned("d", [], NOW)
    made.on_ended(RequestsEnded(worker="d", request_ids=["r0"]))
    assert made.on_moved(RequestsMoved(worker="d", previous="p", request_ids=["r0", "r1"]), NOW) == []
    assert places(made, "r0", "r1") == [None, "d"]


def test_when_there_will_be_room_is_known_of_a_live_instance_as_of_one_that_loads() -> None:

    made = WorkerCapacity(1000)
    for ready, now, state in ((1, 0.0, "loading"), (2, 2.0, "live")):
        holding = Holding(model="m", version="v", ready=list(range(ready)), total=4)
        made.heard(report("t", holding=holding, state=state, plan_id="p"), now)
    assert made.retry_after_ms("m", 100, 2.0) == 2000


def prefilling(worker: str, tokens: int, rate: float | None, running: int = 0, **more: object) -> WorkerReport:
    """It has so many tokens to prefill, and prefills so many a second."""
    engine = replace(load(running=running, slots=9, blocks=1000), waiting_tokens=tokens, prefill_tokens_per_second=rate)
    return report(worker, engine, **more)


@pytest.mark.parametrize(("rate", "most"), [(200.0, 1), (None, 3), (10_000.0, 4)])
def test_what_waits_for_long_waits_here_and_not_at_an_instance(rate: float | None, most: int) -> None:
    made = policy(prefilling("a", 0, rate))
    assert len(admit(made, *(request(f"r{number}", prompt=250) for number in range(4)))) == most
    hear(made, prefilling("a", 0, rate, running=most - 1))
    assert admissions(made.dispatch(NOW)) == []  # the last one had not come when that was said
    hear(made, prefilling("a", 0, rate, running=most))
    assert len(admissions(made.dispatch(NOW))) == min(most, 4 - most)


def gone_live(rate: float | None) -> list[tuple[str, str]]:
    """What an instance gets as it goes live, of three prompts of 300 tokens that one of this rate has no room for."""
    made = policy(prefilling("h", 600, rate))
    assert admit(made, *(request(f"r{number}", prompt=300) for number in range(3))) == []
    hear(made, prefilling("h", 600, rate, helping=["t"]))
    hear(made, report("t", load(slots=9, blocks=1000), state="live"))
    return admissions(made.dispatch(NOW))


def test_one_that_goes_live_gets_what_has_waited_for_an_instance_that_has_much_to_prefill() -> None:
    assert gone_live(None) == [(f"r{number}", "t") for number in range(3)]


def test_what_would_be_late_at_a_live_instance_waits_here_until_anybody_has_room() -> None:
    assert gone_live(500.0) == [("r0", "t"), ("r1", "t")]
    assert gone_live(200.0) == [("r0", "t")]
