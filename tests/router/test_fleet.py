"""Which workers get requests, and what becomes of those of a worker that is gone."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from livescale.services.router.effects import AdmitTo, Lose, StopWork
from livescale.services.router.fleet import HEARD_SECONDS, PartedRequests
from livescale.services.router.instances import InstanceView
from livescale.services.router.requests import Waiting
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.requests import RequestsEnded, Running
from tests.router.examples import NOW, admissions, admit, hear, lease, load, policy, report, request


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


def parted(*ids: str) -> PartedRequests:
    """What is left of an instance that had these requests."""
    instance = InstanceView("w-0")
    instance.update(report("w-0"), NOW)
    for number, id in enumerate(ids):
        instance.admit(Waiting(request(id), number, NOW), NOW)
    kept = PartedRequests()
    kept.part(instance, NOW)
    assert not instance.admitted
    return kept


def lost(kept: PartedRequests, now: float, is_elsewhere: Callable[[str], bool] = lambda id: False) -> list[str]:
    found = list(kept.overdue(now, is_elsewhere))
    assert all(worker == "w-0" and admission.gateway == "gateway-0" for _, worker, admission in found)
    return [id for id, _, _ in found]


def test_a_request_of_which_nothing_is_heard_is_lost_once() -> None:
    kept = parted("b", "a")
    assert lost(kept, NOW + HEARD_SECONDS - 0.01) == []
    assert lost(kept, NOW + HEARD_SECONDS) == ["a", "b"]
    assert lost(kept, NOW + HEARD_SECONDS) == []


def test_one_that_was_heard_of_or_runs_elsewhere_is_not_lost() -> None:
    kept = parted("a", "b", "c")
    assert kept.take("a") is not None
    assert kept.take("a") is None
    assert lost(kept, NOW + 1, lambda id: id == "b") == ["c"]
    assert kept.take("b") is None


def test_a_client_that_leaves_meanwhile_is_remembered() -> None:
    kept = parted("a", "b")
    kept.stop("a")
    kept.stop("unknown")
    stopped = {id: admission.stopped for id, _, admission in kept.overdue(NOW + 1, lambda id: False)}
    assert stopped == {"a": True, "b": False}
