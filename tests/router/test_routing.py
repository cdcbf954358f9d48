"""Turns of instances: requests wait at each of them, however loaded they are."""

from livescale.services.router.admission import RouterLimits
from livescale.services.router.policy import RouterPolicy
from livescale.shared.messages.membership import WorkerReport
from tests.router.examples import admit, entry, hear, load, report, request


def turns(*reports: WorkerReport) -> RouterPolicy:
    made = RouterPolicy(RouterLimits(routing="round-robin"), 1000)
    made.on_models([entry("m"), entry("n")])
    for one in reports:
        assert hear(made, one) == []
    return made


def test_instances_take_turns_whatever_they_run() -> None:
    made = turns(report("a", load(running=2, slots=2)), report("b"), report("c"))
    admitted = admit(made, *(request(f"r-{n}") for n in range(5)))
    assert [worker for _, worker in admitted] == ["a", "b", "c", "a", "b"]


def test_the_turns_of_models_are_apart() -> None:
    made = turns(report("a"), report("b"), report("x", model="n"), report("y", model="n"))
    admitted = admit(made, request("1"), request("2", model="n"), request("3"), request("4", model="n"))
    assert dict(admitted) == {"1": "a", "3": "b", "2": "x", "4": "y"}


def test_an_instance_that_left_loses_its_turn_only() -> None:
    made = turns(report("a"), report("b"), report("c"))
    assert admit(made, request("1")) == [("1", "a")]
    hear(made, report("b", state="draining"))
    assert [worker for _, worker in admit(made, request("2"), request("3"))] == ["c", "a"]


def test_a_conversation_does_not_keep_its_instance() -> None:
    made = turns(report("a"), report("b"))
    first, second = (request(id, context_id="c") for id in ("1", "2"))
    assert [worker for _, worker in (*admit(made, first), *admit(made, second))] == ["a", "b"]


def test_a_request_that_no_turn_could_ever_run_waits_for_none() -> None:
    made = turns(report("a", load(blocks=1)), report("b"))
    assert [worker for _, worker in admit(made, request("1"), request("2"))] == ["b", "b"]
