from typing import Any

from msgspec.structs import replace

from livescale.services.planner.fleet import ServingInstance
from livescale.services.planner.running_scale import NodeCommand
from livescale.services.planner.scale_in import ScaleIn
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.transfers import Drain, Serve
from tests.planner.samples import decision, happened, names, serving, spare

PATIENCE_SECONDS = 60.0


def draining(*workers: str) -> ScaleIn:
    drained = [ServingInstance(f"i-{worker}", (worker,), 0) for worker in workers]
    scale = ScaleIn("scale-1", decision("in"), drained, dict.fromkeys(workers, 5), PATIENCE_SECONDS)
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


def test_how_many_requests_others_went_on_with_is_told_and_why_not_with_the_rest() -> None:
    scale = draining("a", "b", "c", "d")
    kept: dict[str, Any] = {"kept_requests": 2, "kept_because": "each rank has a part"}
    ends = {"a": {"moved_requests": 3}, "b": {}, "c": kept, "d": {"moved_requests": 1, **kept}}
    for worker, requests in ends.items():
        scale.on_instance(replace(happened("spare", worker, 12.0), **requests), 12.0)
    told = {phase.node: phase.detail for phase in scale.record().phases if phase.name == "spare"}
    stayed = "2 stayed: each rank has a part"
    assert told == {
        "a": "others went on with 3 requests",
        "b": "",
        "c": stayed,
        "d": f"others went on with 1 requests; {stayed}",
    }


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
    drained = [ServingInstance("i-a", ("a",), 0), ServingInstance("i-b", ("b",), 0)]
    scale = ScaleIn("scale-1", decision("in"), drained, {"a": 5, "b": 5}, PATIENCE_SECONDS)
    refused, _ = scale.start(11.0)
    scale.refused(refused, "it is loading", 11.5)
    scale.on_report(spare("b"), 12.0)
    assert (scale.state, scale.record().outcome) == ("failed", "a did not drain: it is loading")


def test_a_drain_that_does_not_end_is_given_up_and_those_who_still_drain_are_named() -> None:
    scale = draining("a", "b")
    began = scale.decision.at
    scale.on_report(spare("a"), began + 1.0)
    assert scale.tick(began + PATIENCE_SECONDS - 0.1) == []
    assert not scale.ended
    assert scale.tick(began + PATIENCE_SECONDS) == []
    assert (scale.state, scale.record().outcome) == ("failed", "b did not finish draining within 60 s")
    # It may still come to its end, and change nothing.
    scale.on_report(spare("b"), began + PATIENCE_SECONDS + 1.0)
    scale.tick(began + 2 * PATIENCE_SECONDS)
    assert (scale.state, scale.leaving) == ("failed", frozenset())


def test_a_planner_that_takes_over_does_not_count_from_the_start_again() -> None:
    record = draining("a").record()
    successor = ScaleIn("scale-1", record.decision, [ServingInstance("i-a", ("a",), 0)], {"a": 5}, PATIENCE_SECONDS)
    successor.take_over(record, record.decision.at + 50.0)
    successor.tick(record.decision.at + PATIENCE_SECONDS)
    assert successor.state == "failed"


def recalled() -> ScaleIn:
    drained = [ServingInstance(f"i-{worker}", (worker,), 0, "v") for worker in "ab"]
    drained.append(ServingInstance("i-c", ("c", "d"), 0, "v"))  # of several ranks, which would have to agree
    scale = ScaleIn("scale-1", replace(decision("in"), rule="idle"), drained, dict.fromkeys("abcd", 5), 60.0)
    scale.start(11.0)
    assert (scale.may_recall("v"), scale.may_recall("other")) == (["a", "b"], [])
    [command] = scale.recall(["a"], "prompts wait", 12.0)
    assert isinstance(command.message, Serve)
    assert (command.message.recall, command.message.epoch, command.message.instance) == (True, 5, "i-a")
    assert (scale.coming, scale.leaving) == ({"i-a"}, {"i-b", "i-c"})
    assert scale.wants(command)
    for worker in "bcd":
        scale.on_report(spare(worker), 13.0)
    return scale


def test_an_instance_that_drains_is_recalled_and_counts_at_once() -> None:
    scale = recalled()
    assert scale.state == "draining"
    assert scale.may_recall("v") == []
    scale.on_report(serving("a"), 13.1)
    assert (scale.state, scale.coming, scale.record().instances) == ("done", frozenset(), ["i-b", "i-c"])
    assert [(p.node, p.detail) for p in scale.record().phases if p.name == "recalled"] == [("a", "prompts wait")]


def test_an_instance_that_has_drained_or_died_meanwhile_does_not_come_back() -> None:
    for act in ("spare", "refused", "dead"):
        scale = recalled()
        if act == "spare":
            scale.on_report(spare("a"), 14.0)
        elif act == "refused":
            order = Serve(plan_id="scale-1", instance="i-a", epoch=5, recall=True)
            scale.refused(NodeCommand("a", order, "why"), "it has drained", 14.0)
        else:
            scale.on_lease(
                LeaseChanged(service="worker", id="a", epoch=5, state="dead", reason="silent", at=14.0), 14.0
            )
        assert (scale.state, scale.coming) == ("done", frozenset())
        assert [phase.name for phase in scale.record().phases][-1] == "not_recalled"


def test_what_another_version_or_model_needs_is_not_recalled() -> None:
    for rule in ("version", "yield", "removed"):
        drained = [ServingInstance("i-a", ("a",), 0, "v")]
        assert ScaleIn("s", replace(decision("in"), rule=rule), drained, {"a": 5}, 60.0).may_recall("v") == []
