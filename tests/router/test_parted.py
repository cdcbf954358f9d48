"""Requests of instances that ended as planned: kept for a moment, as the word of their ends may come later."""

from collections.abc import Callable

from livescale.services.router.instances import InstanceView
from livescale.services.router.parted import HEARD_SECONDS, PartedRequests
from livescale.services.router.queue import Waiting
from tests.router.examples import NOW, report, request


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
