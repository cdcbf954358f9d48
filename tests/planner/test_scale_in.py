from services.planner.fleet import Serving
from services.planner.scale_in import ScaleIn
from shared.messages.membership import LeaseChanged
from shared.messages.scaling import Drain
from tests.planner.made import decision, happened, names, serving, spare


def draining(*workers: str) -> ScaleIn:
    drained = [Serving(f"i-{worker}", (worker,), 0) for worker in workers]
    scale = ScaleIn("scale-1", decision("in"), drained, dict.fromkeys(workers, 5))
    commands = scale.start(11.0)
    assert names(commands) == [("Drain", worker) for worker in workers]
    assert all(isinstance(command.message, Drain) and command.message.epoch == 5 for command in commands)
    for command in commands:
        assert scale.acknowledged(command, 11.1) == []
    return scale


def test_it_is_done_when_every_instance_is_gone() -> None:
    scale = draining("a", "b")
    assert scale.leaving == {"i-a", "i-b"}
    scale.on_instance(happened("spare", "a", 12.0), 12.0)
    assert scale.state == "draining"
    scale.on_report(spare("b"), 13.0)
    assert (scale.state, scale.record().outcome, scale.leaving) == ("done", "2 instances drained", frozenset())
    spares = [(phase.node, phase.at) for phase in scale.record().phases if phase.name == "spare"]
    assert spares == [("a", 12.0), ("b", 13.0)]


def test_a_report_from_before_the_drain_is_no_end() -> None:
    scale = draining("a")
    scale.on_report(serving("a"), 12.0)
    scale.on_report(serving("other"), 12.0)
    scale.on_instance(happened("serving", "a"), 12.0)
    assert scale.state == "draining"


def test_a_worker_that_dies_while_it_drains_is_gone_too() -> None:
    scale = draining("a")
    suspect = LeaseChanged(service="worker", id="a", epoch=5, state="suspect", reason="silent", at=12.0)
    scale.on_lease(suspect, 12.0)
    assert not scale.ended
    scale.on_lease(LeaseChanged(service="worker", id="a", epoch=5, state="dead", reason="silent", at=12.0), 12.0)
    assert scale.state == "done"


def test_a_worker_that_will_not_drain_is_named() -> None:
    scale = ScaleIn("scale-1", decision("in"), [Serving("i-a", ("a",), 0), Serving("i-b", ("b",), 0)], {"a": 5, "b": 5})
    refused, _ = scale.start(11.0)
    scale.refused(refused, "it is loading", 11.5)
    scale.on_report(spare("b"), 12.0)
    assert (scale.state, scale.record().outcome) == ("failed", "a did not drain: it is loading")
