from msgspec.structs import replace

from livescale.services.planner.running_scale import NodeCommand
from livescale.services.planner.scale_out import ScaleOut
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.transfers import Load, Send, Serve
from tests.planner.samples import (
    acknowledge,
    block_ready,
    broken,
    chain,
    happened,
    loading,
    member,
    names,
    scale_out,
    serving,
    transfer,
)


def started(targets: list[str], ranks: int = 1) -> ScaleOut:
    """Every target is ready, and who is ahead of it sends."""
    scale = scale_out(targets, ranks)
    sends = acknowledge(scale, scale.start(10.5))
    assert names(sends) == [("Send", sender) for sender in ["s", *targets[:-1]]]
    assert acknowledge(scale, sends) == []
    return scale


def dead(id: str, epoch: int = 5) -> LeaseChanged:
    return LeaseChanged(service="worker", id=id, epoch=epoch, state="dead", reason="silent", at=12.0)


def phases(scale: ScaleOut) -> list[tuple[str, str | None, float]]:
    return [(phase.name, phase.node, phase.at) for phase in scale.record().phases]


def test_loads_name_the_senders_and_how_to_receive() -> None:
    scale = scale_out(["a", "b", "c"])
    commands = scale.start(10.5)
    loads = [command.message for command in commands if isinstance(command.message, Load)]
    assert hops(commands) == [("a", "s", 77), ("b", "a", 78), ("c", "b", 79)]
    assert [load.instance for load in loads] == ["i-a", "i-b", "i-c"]
    assert {(load.epoch, load.rank, load.max_model_len) for load in loads} == {(5, 0, 512)}
    assert {load.secret for load in loads} == {b"of-this-plan"}
    assert "of-this-plan" not in str(scale.record())


def test_a_node_sends_only_once_every_target_that_receives_from_it_is_ready() -> None:
    scale = scale_out(["a", "b"])
    first, second = scale.start(10.5)
    [send] = scale.acknowledged(first, 11.0)
    assert sent([send]) == [("s", "a", 77)]
    assert isinstance(send.message, Send)
    assert (send.message.epoch, send.message.secret) == (5, b"of-this-plan")
    assert sent(scale.acknowledged(second, 11.0)) == [("a", "b", 78)]


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


def test_the_record_says_whether_parameters_were_received_or_shared() -> None:
    scale = started(["a", "b"])
    scale.on_transfer(replace(transfer("a", "whole"), received_bytes=3_000_000), 12.0)
    scale.on_transfer(replace(transfer("b", "whole"), received_bytes=100_000, shared_bytes=2_900_000), 12.0)
    whole = {phase.node: phase.detail for phase in scale.record().phases if phase.name == "whole"}
    assert whole == {"a": "3.0 MB received", "b": "0.1 MB received, 2.9 MB shared"}


def test_that_is_said_also_where_a_report_was_sooner_than_the_event() -> None:
    scale = started(["a", "b"])
    scale.on_report(loading("a"), 12.0)
    scale.on_transfer(replace(transfer("a", "whole"), shared_bytes=3_000_000), 12.1)
    [whole] = [phase for phase in scale.record().phases if phase.name == "whole"]
    assert (whole.node, whole.at, whole.detail) == ("a", 12.0, "3.0 MB shared")


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


def refuse(scale: ScaleOut, command: NodeCommand, error: str = "no") -> list[tuple[str, str]]:
    return names(scale.refused(command, error, 11.0))


def hops(commands: list[NodeCommand]) -> list[tuple[str, str, int]]:
    """(receiver, sender, ticket) of each flow in LOADs."""
    loads = [(command.node, command.message) for command in commands if isinstance(command.message, Load)]
    return [(node, flow.upstream.id, flow.ticket) for node, load in loads for flow in load.inflows]


def sent(commands: list[NodeCommand]) -> list[tuple[str, str, int]]:
    """(sender, receiver, ticket) of each flow in SENDs."""
    sends = [(command.node, command.message) for command in commands if isinstance(command.message, Send)]
    return [(node, flow.downstream.id, flow.ticket) for node, send in sends for flow in send.outflows]


def replanned(scale: ScaleOut, *path: str, ticket: int = 90, now: float = 12.0) -> list[NodeCommand]:
    """A new plan along this chain."""
    assert scale.wants_plan(now)
    assert set(path[1:]) <= scale.delivery.lacking.keys()
    members = {id: member(id, epoch=5) for id in path}
    return scale.replan(chain(*path, ticket=ticket), members, [f"now from {path[0]}"], now)


def outcome(scale: ScaleOut) -> tuple[str, str]:
    return scale.state, scale.record().outcome


def test_a_target_that_refuses_fails_alone_and_those_behind_it_get_another_sender() -> None:
    scale = scale_out(["a", "b", "c"])
    commands = scale.start(10.5)
    scale.acknowledged(commands[2], 11.0)
    assert refuse(scale, commands[1], "busy") == [("Abort", "b")]
    assert scale.reserved == {"a", "c"}
    assert sent(scale.acknowledged(commands[0], 11.5)) == [("s", "a", 77)]
    assert scale.receiving == {"a"}
    loads = replanned(scale, "a", "c")
    assert hops(loads) == [("c", "a", 90)]
    assert sent(acknowledge(scale, loads)) == [("a", "c", 90)]
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


def test_a_sender_that_refuses_is_replaced_and_avoided() -> None:
    scale = scale_out(["a"])
    [send] = acknowledge(scale, scale.start(10.5))
    assert refuse(scale, send, "gone") == []
    assert scale.delivery.stranded.avoid >= {"s"}
    assert hops(replanned(scale, "t", "a")) == [("a", "t", 90)]


def test_a_target_that_fails_leaves_who_received_from_it_to_another() -> None:
    scale = started(["a", "b", "c", "d"])
    scale.on_transfer(transfer("c", "whole"), 12.0)
    aborts = scale.on_transfer(transfer("b", "failed", error="cut off"), 12.0)
    # c was whole before, and still feeds d; a is ahead and goes on.
    assert names(aborts) == [("Abort", "b")]
    assert scale.reserved == {"a", "c", "d"}
    assert scale.coming == {"i-a", "i-c", "i-d"}
    assert not scale.wants_plan(12.0)
    scale.on_report(serving("c"), 12.5)
    for worker in ("a", "d"):
        acknowledge(scale, scale.on_transfer(transfer(worker, "whole"), 13.0))
    assert outcome(scale) == ("failed", "b: cut off")
    assert [phase for phase in phases(scale) if phase[0] == "serving"] == [
        ("serving", "c", 12.5),
        ("serving", "a", 11.0),
        ("serving", "d", 11.0),
    ]


def test_a_dead_source_is_replaced_for_who_received_from_it_and_the_others_go_on() -> None:
    scale = started(["a", "b", "c"])
    assert scale.on_lease(dead("s"), 12.0) == []
    assert scale.delivery.lacking == {"a": [0, 1, 2, 3]}
    # b and c are going to get nothing that a does not get.
    assert scale.receiving == frozenset()
    loads = replanned(scale, "t", "a")
    assert hops(loads) == [("a", "t", 90)]
    assert sent(acknowledge(scale, loads)) == [("t", "a", 90)]
    assert scale.receiving == {"a", "b", "c"}
    assert scale.sending == {"t": 1, "a": 1, "b": 1}
    for worker in ("a", "b", "c"):
        acknowledge(scale, scale.on_transfer(transfer(worker, "whole"), 13.0))
    assert outcome(scale) == ("done", "3 new instances serve")
    story = [phase for phase in scale.record().phases if phase.name == "replanned"]
    assert [(phase.node, phase.detail) for phase in story] == [("a", "s is gone: silent; now from t")]
    plan = scale.record().plan
    assert plan is not None
    assert plan.paths == [["t", "a", "b", "c"]]


def test_what_a_stranded_target_has_already_is_not_planned_again() -> None:
    scale = started(["a"])
    scale.on_report(loading("a", blocks=2), 12.0)
    scale.on_lease(dead("s"), 12.0)
    assert scale.delivery.lacking == {"a": [2, 3]}


def test_a_hop_that_dies_is_noticed_by_who_received_from_it_before_its_lease_ends() -> None:
    scale = started(["a", "b", "c"])
    assert scale.on_transfer(broken("c", 79), 12.0) == []
    assert hops(replanned(scale, "t", "c")) == [("c", "t", 90)]
    # What is said of the old flow comes too late.
    assert scale.on_transfer(broken("c", 79), 12.1) == []
    assert not scale.wants_plan(12.1)
    assert names(scale.on_lease(dead("b"), 12.5)) == [("Abort", "b")]
    assert scale.reserved == {"a", "c"}


def test_without_another_plan_the_stranded_wait_until_the_patience_ends() -> None:
    scale = started(["a"])
    scale.on_lease(dead("s"), 12.0)
    scale.delivery.stranded.looked(12.0, "no worker or host holds the whole model in memory")
    assert not scale.wants_plan(12.4)
    assert scale.reserved == {"a"}
    assert scale.wants_plan(12.5)
    assert names(scale.tick(15.6)) == [("Abort", "a")]
    assert outcome(scale) == ("failed", "nothing arrived for 5.1 s; no worker or host holds the whole model in memory")


def test_a_stranded_target_that_proves_whole_needs_no_plan() -> None:
    scale = started(["a"])
    scale.on_lease(dead("s"), 12.0)
    assert names(scale.on_transfer(transfer("a", "whole"), 12.1)) == [("Serve", "a")]
    assert not scale.wants_plan(12.5)
    # It may have become so while the picture was looked at.
    assert scale.replan(chain("t", "a", ticket=90), {"t": member("t")}, [], 12.5) == []


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
    scale.on_block(block_ready("a", 0), 14.0)
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


def test_a_node_counts_as_sending_until_who_receives_from_it_is_whole() -> None:
    scale = started(["a"])
    assert scale.sending == {"s": 1}
    scale.on_transfer(transfer("a", "whole"), 12.0)
    assert not scale.sending
