import pytest

from services.planner.chains import CannotPlan
from services.planner.scale_out import ScaleOut
from services.planner.scales import Command
from shared.messages.membership import LeaseChanged
from shared.messages.scaling import Load, Send, Serve
from tests.planner.made import (
    acknowledge,
    broken,
    happened,
    loading,
    names,
    scale_out,
    serving,
    snapshot,
    spare,
    transfer,
)

WORKERS = [spare(id) for id in "abcd"]


def started(targets: list[str], ranks: int = 1) -> ScaleOut:
    """Every target is ready and the source sends."""
    scale = scale_out(targets, ranks)
    sends = acknowledge(scale, scale.start(10.5))
    assert names(sends) == [("Send", "s")]
    assert acknowledge(scale, sends) == []
    return scale


def dead(id: str, epoch: int = 5) -> LeaseChanged:
    return LeaseChanged(service="worker", id=id, epoch=epoch, state="dead", reason="silent", at=12.0)


def phases(scale: ScaleOut) -> list[tuple[str, str | None, float]]:
    return [(phase.name, phase.node, phase.at) for phase in scale.record().phases]


def test_loads_go_out_last_hop_first_and_name_the_neighbours() -> None:
    scale = scale_out(["a", "b", "c"])
    commands = scale.start(10.5)
    loads = [command.message for command in commands if isinstance(command.message, Load)]
    hops = [(load.instance, load.upstream.id, [node.id for node in load.downstream]) for load in loads]
    assert hops == [("i-c", "b", []), ("i-b", "a", ["c"]), ("i-a", "s", ["b"])]
    assert [command.node for command in commands] == ["c", "b", "a"]
    assert {(load.ticket, load.epoch, load.rank, load.max_model_len) for load in loads} == {(77, 5, 0, 512)}
    assert {load.secret for load in loads} == {b"of-this-plan"}
    assert "of-this-plan" not in str(scale.record())


def test_the_source_sends_only_once_every_target_is_ready() -> None:
    scale = scale_out(["a", "b"])
    first, second = scale.start(10.5)
    assert scale.acknowledged(first, 11.0) == []
    [command] = scale.acknowledged(second, 11.0)
    assert isinstance(command.message, Send)
    assert [node.id for node in command.message.downstream] == ["a"]
    assert (command.message.ticket, command.message.epoch) == (77, 5)


def test_a_scale_runs_through_its_phases() -> None:
    scale = started(["a"])
    assert scale.take_change()
    scale.on_transfer(transfer("a", "started", 12.0), 12.0)
    [serve] = scale.on_transfer(transfer("a", "whole", 13.0), 13.0)
    assert isinstance(serve.message, Serve)
    assert scale.coming == {"i-a"}
    scale.on_instance(happened("serving", "a", 13.5), 13.5)
    assert acknowledge(scale, [serve]) == []
    assert (scale.state, scale.record().outcome, scale.coming) == ("done", "1 new instances serve", frozenset())
    scale.on_instance(happened("first_token", "a", 14.0), 14.0)
    assert phases(scale) == [
        ("decided", None, 10.0),
        ("planned", None, 10.5),
        ("commanded", None, 11.0),
        ("first_byte", "a", 12.0),
        ("whole", "a", 13.0),
        ("serving", "a", 13.5),
        ("first_token", "a", 14.0),
    ]


def test_targets_serve_one_by_one_and_the_scale_ends_with_the_last() -> None:
    scale = started(["a", "b"])
    for worker in ("b", "a"):
        serve = scale.on_transfer(transfer(worker, "whole"), 12.0)
        assert names(serve) == [("Serve", worker)]
        assert scale.state == "loading"
        acknowledge(scale, serve)
    assert scale.state == "done"


def test_an_instance_serves_once_every_rank_is_whole() -> None:
    scale = started(["a", "b"], ranks=2)
    assert scale.on_transfer(transfer("a", "whole"), 12.0) == []
    serves = scale.on_transfer(transfer("b", "whole"), 12.0)
    assert names(serves) == [("Serve", "a"), ("Serve", "b")]
    acknowledge(scale, serves)
    assert scale.state == "done"


def test_a_lost_event_is_made_up_for_by_the_workers_report() -> None:
    scale = started(["a"])
    assert scale.on_report(loading("a", blocks=2), 12.0) == []
    assert names(scale.on_report(loading("a"), 12.0)) == [("Serve", "a")]
    assert scale.on_report(loading("a"), 12.1) == []
    scale.on_report(serving("a"), 12.5)
    assert scale.state == "done"


def refuse(scale: ScaleOut, command: Command, error: str = "no") -> list[tuple[str, str]]:
    return names(scale.refused(command, error, 11.0))


def hops(commands: list[Command]) -> list[tuple[str, str, list[str], int]]:
    """(target, upstream, downstream, ticket) of each LOAD."""
    loads = [(command.node, command.message) for command in commands if isinstance(command.message, Load)]
    return [(node, one.upstream.id, [child.id for child in one.downstream], one.ticket) for node, one in loads]


def replanned(scale: ScaleOut, ticket: int = 78, now: float = 12.0) -> list[Command]:
    """A new plan, from another worker that serves."""
    assert scale.wants_plan(now)
    return scale.replan(snapshot(serving("s"), serving("t"), *WORKERS), {"s": 1}, ticket, now)


def outcome(scale: ScaleOut) -> tuple[str, str]:
    return scale.state, scale.record().outcome


def test_a_target_that_refuses_fails_alone_and_those_behind_it_get_another_upstream() -> None:
    scale = scale_out(["a", "b", "c"])
    commands = scale.start(10.5)
    scale.acknowledged(commands[0], 11.0)
    assert refuse(scale, commands[1], "busy") == [("Abort", "b")]
    assert scale.reserved == {"a", "c"}
    assert names(scale.acknowledged(commands[2], 11.5)) == [("Send", "s")]
    loads = replanned(scale)
    # The nearest that is not busy: a has lost its child.
    assert hops(loads) == [("c", "a", [], 78)]
    [send] = acknowledge(scale, loads)
    assert isinstance(send.message, Send)
    assert (send.node, send.message.ticket, [node.id for node in send.message.downstream]) == ("a", 78, ["c"])
    for worker in ("a", "c"):
        acknowledge(scale, scale.on_transfer(transfer(worker, "whole"), 13.0))
    assert outcome(scale) == ("failed", "b did not load: busy")


def test_the_only_target_that_refuses_ends_the_scale() -> None:
    scale = scale_out(["a"])
    [load] = scale.start(10.5)
    assert refuse(scale, load, "busy") == [("Abort", "a"), ("Abort", "s")]
    assert outcome(scale) == ("failed", "a did not load: busy")
    assert scale.reserved == frozenset()
    assert scale.acknowledged(load, 11.5) == []


def test_a_source_that_refuses_is_replaced() -> None:
    scale = scale_out(["a"])
    [send] = acknowledge(scale, scale.start(10.5))
    assert refuse(scale, send, "gone") == []
    assert hops(replanned(scale)) == [("a", "t", [], 78)]


def test_a_target_that_fails_leaves_those_behind_it_to_another_chain() -> None:
    scale = started(["a", "b", "c", "d"])
    scale.on_transfer(transfer("c", "whole"), 12.0)
    aborts = scale.on_transfer(transfer("b", "failed", error="cut off"), 12.0)
    # c was whole before; a is upstream and goes on; d goes on with what it has.
    assert names(aborts) == [("Abort", "b")]
    assert scale.reserved == {"a", "c", "d"}
    assert scale.coming == {"i-a", "i-c", "i-d"}
    acknowledge(scale, acknowledge(scale, replanned(scale)))
    scale.on_report(serving("c"), 12.5)
    for worker in ("a", "d"):
        acknowledge(scale, scale.on_transfer(transfer(worker, "whole"), 13.0))
    assert outcome(scale) == ("failed", "b: cut off")
    assert [phase for phase in phases(scale) if phase[0] == "serving"] == [
        ("serving", "c", 12.5),
        ("serving", "a", 11.0),
        ("serving", "d", 11.0),
    ]


def test_a_dead_source_is_replaced_for_those_that_are_not_whole() -> None:
    scale = started(["a", "b", "c"])
    serve = scale.on_transfer(transfer("a", "whole"), 12.0)
    assert scale.on_lease(dead("s"), 12.0) == []
    loads = replanned(scale)
    assert hops(loads) == [("c", "b", [], 78), ("b", "t", ["c"], 78)]
    assert scale.sources == ["t"]
    acknowledge(scale, serve + loads)
    for worker in ("b", "c"):
        acknowledge(scale, scale.on_transfer(transfer(worker, "whole"), 13.0))
    assert outcome(scale) == ("done", "3 new instances serve")
    story = [phase for phase in scale.record().phases if phase.name == "replanned"]
    why = "s is gone: silent; now from t: a worker that holds the model, with 0 flows out"
    assert [(phase.node, phase.detail) for phase in story] == [("b", why), ("c", why)]
    plan = scale.record().plan
    assert plan is not None
    assert [(chain.source, chain.targets) for chain in plan.chains] == [("s", ["a"]), ("t", ["b", "c"])]


def test_a_hop_that_dies_is_noticed_by_who_received_from_it_before_its_lease_ends() -> None:
    scale = started(["a", "b", "c"])
    assert scale.on_transfer(broken("c", 77), 12.0) == []
    assert hops(replanned(scale)) == [("c", "t", [], 78)]
    # That a whole chain breaks is one loss, and what is said of the old one comes too late.
    assert scale.on_transfer(broken("c", 77), 12.1) == []
    assert not scale.wants_plan(12.1)
    assert names(scale.on_lease(dead("b"), 12.5)) == [("Abort", "b")]
    assert scale.reserved == {"a", "c"}


def test_without_anybody_who_holds_the_model_the_stranded_wait_until_the_patience_ends() -> None:
    scale = started(["a"])
    scale.on_lease(dead("s"), 12.0)
    with pytest.raises(CannotPlan, match="no worker or host holds"):
        scale.replan(snapshot(*WORKERS), {}, 78, 12.0)
    scale.not_planned("no worker or host holds the whole model in memory", 12.0)
    assert not scale.wants_plan(12.4)
    assert scale.reserved == {"a"}
    assert scale.wants_plan(12.5)
    assert names(scale.tick(15.6)) == [("Abort", "a")]
    assert outcome(scale) == ("failed", "nothing arrived for 5.1 s; no worker or host holds the whole model in memory")


def test_whoever_was_just_lost_sends_again_only_where_nobody_else_can() -> None:
    scale = started(["a"])
    scale.on_transfer(broken("a", 77), 12.0)
    assert hops(replanned(scale)) == [("a", "t", [], 78)]
    scale.on_transfer(broken("a", 78), 13.0)
    assert hops(scale.replan(snapshot(serving("s"), *WORKERS), {}, 79, 13.0)) == [("a", "s", [], 79)]


def test_a_stranded_target_that_proves_whole_needs_no_plan() -> None:
    scale = started(["a"])
    scale.on_lease(dead("s"), 12.0)
    assert names(scale.on_transfer(transfer("a", "whole"), 12.1)) == [("Serve", "a")]
    assert not scale.wants_plan(12.5)
    assert replanned_nothing(scale)


def replanned_nothing(scale: ScaleOut) -> bool:
    """It may have become so while the picture was looked at."""
    return scale.replan(snapshot(*WORKERS), {}, 78, 12.5) == []


def test_only_the_lease_that_was_planned_with_counts() -> None:
    scale = started(["a"])
    assert scale.on_lease(dead("a", epoch=4), 12.0) == []
    assert scale.on_lease(dead("unconcerned"), 12.0) == []
    assert (
        scale.on_lease(LeaseChanged(service="worker", id="a", epoch=5, state="suspect", reason="", at=1.0), 12.0) == []
    )
    rejoined = LeaseChanged(service="worker", id="a", epoch=6, state="alive", reason="joined", at=1.0)
    assert names(scale.on_lease(rejoined, 12.0)) == [("Abort", "a"), ("Abort", "s")]


def test_one_rank_that_fails_fails_its_instance() -> None:
    scale = started(["a", "b"], ranks=2)
    scale.on_transfer(transfer("a", "whole"), 12.0)
    assert names(scale.on_transfer(transfer("b", "failed"), 12.0)) == [("Abort", "a"), ("Abort", "b"), ("Abort", "s")]
    assert scale.state == "failed"


def test_a_worker_that_will_not_serve_fails_alone() -> None:
    scale = started(["a", "b"])
    [serve] = scale.on_transfer(transfer("a", "whole"), 12.0)
    assert refuse(scale, serve) == [("Abort", "a")]
    acknowledge(scale, scale.on_transfer(transfer("b", "whole"), 12.5))
    assert scale.state == "failed"


def test_a_scale_of_which_nothing_arrives_any_more_is_given_up() -> None:
    scale = started(["a", "b"])
    scale.on_transfer(transfer("a", "started"), 12.0)
    scale.on_progress(14.0)
    assert scale.tick(18.9) == []
    assert names(scale.tick(19.0)) == [("Abort", "a"), ("Abort", "b"), ("Abort", "s")]
    assert scale.record().outcome == "nothing arrived for 5.0 s"
    assert scale.tick(30.0) == []


def test_once_ended_nothing_moves_it() -> None:
    scale = started(["a"])
    acknowledge(scale, scale.on_transfer(transfer("a", "whole"), 12.0))
    assert scale.take_change()
    assert scale.on_transfer(transfer("a", "failed"), 13.0) == []
    assert scale.on_lease(dead("a"), 13.0) == []
    assert scale.on_report(serving("a"), 13.0) == []
    assert scale.on_instance(happened("serving", "other"), 13.0) == []
    assert not scale.take_change()
    assert scale.state == "done"


def test_the_source_counts_as_sending_until_everyone_is_whole() -> None:
    scale = started(["a"])
    assert scale.sources == ["s"]
    scale.on_transfer(transfer("a", "whole"), 12.0)
    assert scale.sources == []
