from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.transfers import Load, Send
from tests.planner.samples import (
    acknowledge,
    block_ready,
    died,
    inflows,
    loading,
    names,
    outcome,
    outflows,
    refuse,
    scale_out,
    serving,
    started,
    transfer,
)


def test_loads_name_the_senders_and_how_to_receive() -> None:
    scale = scale_out(["a", "b", "c"])
    commands = scale.start(10.5)
    loads = [command.message for command in commands if isinstance(command.message, Load)]
    assert inflows(commands) == [("a", "s", 77), ("b", "a", 78), ("c", "b", 79)]
    assert [load.instance for load in loads] == ["i-a", "i-b", "i-c"]
    assert {(load.epoch, load.rank, load.max_model_len) for load in loads} == {(5, 0, 512)}
    assert {load.secret for load in loads} == {b"of-this-plan"}
    assert "of-this-plan" not in str(scale.record())


def test_a_node_sends_only_once_every_target_that_receives_from_it_is_ready() -> None:
    scale = scale_out(["a", "b"])
    first, second = scale.start(10.5)
    [send] = scale.acknowledged(first, 11.0)
    assert outflows([send]) == [("s", "a", 77)]
    assert isinstance(send.message, Send)
    assert (send.message.epoch, send.message.secret) == (5, b"of-this-plan")
    assert outflows(scale.acknowledged(second, 11.0)) == [("a", "b", 78)]


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


def test_an_instance_that_a_report_shows_to_serve_is_counted_by_its_reports_alone() -> None:
    scale = started(["a", "b"])
    acknowledge(scale, scale.on_transfer(transfer("a", "whole"), 12.0))
    assert scale.coming == {"i-a", "i-b"}, "its last report may be of before it loaded"
    scale.on_report(serving("a"), 12.5)
    assert (scale.coming, scale.state) == ({"i-b"}, "loading")


def test_a_target_may_be_whole_before_its_answer_to_the_load_comes() -> None:
    scale = scale_out(["a", "b"])
    first, second = scale.start(10.5)
    assert names(scale.on_transfer(transfer("a", "whole"), 11.0)) == [("Serve", "a")]
    assert names(scale.on_transfer(transfer("b", "whole"), 11.0)) == [("Serve", "b")]
    assert scale.acknowledged(first, 11.1) == []
    assert refuse(scale, second, "it loads already") == [], "it has everything, so it is not given up"
    scale.on_report(serving("a"), 11.2)
    scale.on_report(serving("b"), 11.2)
    assert scale.state == "done"


def test_the_only_target_that_refuses_ends_the_scale() -> None:
    scale = scale_out(["a"])
    [load] = scale.start(10.5)
    assert refuse(scale, load, "busy") == [("Abort", "a"), ("Abort", "s")]
    assert outcome(scale) == ("failed", "a did not load: busy")
    assert scale.reserved == frozenset()
    assert scale.acknowledged(load, 11.5) == []


def test_only_the_lease_that_was_planned_with_counts() -> None:
    scale = started(["a"])
    assert scale.on_lease(died("a", epoch=4), 12.0) == []
    assert scale.on_lease(died("unconcerned"), 12.0) == []
    assert (
        scale.on_lease(LeaseChanged(service="worker", id="a", epoch=5, state="suspect", reason="", at=1.0), 12.0) == []
    )
    rejoined = LeaseChanged(service="worker", id="a", epoch=6, state="alive", reason="joined", at=1.0)
    assert names(scale.on_lease(rejoined, 12.0)) == [("Abort", "a"), ("Abort", "s")]


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
