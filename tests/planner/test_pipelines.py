"""Execution pipelines of a scale: when they are formed, what is held meanwhile, and how they end."""

import pytest
from msgspec.structs import replace

from livescale.services.planner.live import choose_live, foresee_pipelines
from livescale.services.planner.pipelines import SWITCH_TIMEOUT_SECONDS
from livescale.services.planner.plans.plan import TransferPlan
from livescale.services.planner.scale_out import ScaleOut
from livescale.shared.messages.model_parallel import Pipeline, PipelineOver
from livescale.shared.messages.transfers import Abort, PlannedPipeline, Serve
from tests.control.fakes import BLOCKS
from tests.planner.pipeline_play import FORMED_AT, Played, ready, running
from tests.planner.samples import acknowledge, block_ready, happened, loading, scale_out, transfer


def test_it_is_formed_when_its_members_have_every_block_between_them_the_leader_last() -> None:
    played = Played()
    played.arrive("b", [0, 1], 12.0)
    played.arrive("a", [3], 12.5)
    assert played.said == []
    played.arrive("a", [2], FORMED_AT)
    [command] = played.pending
    assert played.answer(FORMED_AT + 0.1) == [("Pipeline", "a")]
    told, message = played.pending[0], command.message
    assert (told.node, command.reason) == ("b", "run b 0-1, a 2-3")
    assert isinstance(message, Pipeline)
    assert [(stage.node.id, stage.first, stage.stop) for stage in message.stages] == [("b", 0, 2), ("a", 2, 4)]
    assert (message.id, message.kv_blocks, message.epoch, message.secret) == ("scale-1-0", 20, 5, b"of-this-plan")
    assert played.answer(FORMED_AT + 0.2) == [("Pipeline", "b")]
    assert played.said == []
    assert (played.record.ready_at, played.record.running_at) == (FORMED_AT, FORMED_AT + 0.2)
    assert played.record.stages == ["b 0-1", "a 2-3"]


def test_it_waits_to_hear_how_many_kv_blocks_its_members_have() -> None:
    scale = scale_out(["a", "b"], pipelines=[["a", "b"]])
    acknowledge(scale, scale.start(10.5))
    for worker, blocks in (("a", [0, 1]), ("b", [2, 3])):
        for index in blocks:
            scale.on_block(block_ready(worker, index), 12.0)
    scale.on_report(loading("a", 2, kv_blocks=7), 12.1)
    assert scale.follow_up(12.1) == []
    scale.on_report(loading("b", 0, kv_blocks=9), 12.2)
    [command] = scale.follow_up(12.2)
    assert isinstance(command.message, Pipeline)
    assert command.message.kv_blocks == 7


def test_where_one_is_whole_there_is_nothing_to_gain() -> None:
    played = Played()
    played.arrive("a", range(BLOCKS), 12.0)
    assert played.record.reason == "a is whole already"
    played.whole("a", 12.0)
    played.whole("b", 12.1)
    assert played.said == [("Serve", "a"), ("Serve", "b")]


def test_a_member_that_died_before_is_done_without_as_long_as_two_are_left() -> None:
    played = Played()
    played.die("c", 12.0)
    played.arrive("b", [0, 1], 12.1)
    played.arrive("a", [2, 3], 12.1)
    assert ("Pipeline", "a") in played.said
    played = Played("ab")
    played.die("a", 12.0)
    assert played.record.reason == "no other member is left"


def test_when_all_are_whole_the_leader_serves_then_the_others() -> None:
    played = running()
    played.whole("b", 14.0)
    assert played.said == [], "SERVE is held"
    played.whole("c", 14.1)
    assert played.answer(14.2) == [("Serve", "c")], "who has no stage waits for nobody"
    played.whole("a", 14.3)
    assert played.answer(14.4) == [("Serve", "b")]
    assert played.answer(14.5) == [("Serve", "a")]
    assert (played.scale.state, played.record.reason, played.record.ended_at) == ("done", "each of them is whole", 14.4)
    assert played.record.switching_at == 14.3
    assert played.said == []
    assert played.scale.take_end()
    assert not played.scale.take_end()


def test_a_member_that_keeps_the_others_waiting_too_long_serves_later() -> None:
    played = running()
    played.whole("b", 14.0)
    played.tick(14.0 + SWITCH_TIMEOUT_SECONDS - 0.1)
    assert played.said == []
    played.tick(14.0 + SWITCH_TIMEOUT_SECONDS)
    assert played.answer(16.1) == [("Serve", "b")]
    assert played.record.reason == "a kept others waiting"
    played.whole("a", 17.0)
    assert played.answer(17.1) == [("Serve", "a")]


def test_the_longer_it_has_run_the_longer_is_waited() -> None:
    played = running()
    played.whole("b", 13.2 + 6.0)
    played.tick(19.2 + 2.9)
    assert played.said == []
    played.tick(19.2 + 3.1)
    assert played.said == [("Serve", "b")]


def test_where_the_leader_is_not_whole_in_time_it_gives_its_requests_back() -> None:
    played = running()
    played.whole("a", 14.0)
    played.tick(16.0)
    assert sorted(played.said) == [("PipelineOver", "a"), ("PipelineOver", "b"), ("Serve", "a")]
    played.answer(16.1)
    played.whole("b", 17.0)
    assert played.answer(17.1) == [("Serve", "b")]


@pytest.mark.parametrize("member", ["a", "b"])
def test_a_member_that_refuses_its_stages_ends_the_pipeline_for_all(member: str) -> None:
    played = ready()
    if member == "b":
        played.answer(FORMED_AT + 0.1)
    played.refuse(FORMED_AT + 0.2)
    assert played.said == [("PipelineOver", "b"), ("PipelineOver", "a")]
    assert played.record.reason == f"{member} refused its stages: no"
    played.pending.clear()
    played.whole("a", 14.0)
    assert played.said == [("Serve", "a")]


@pytest.mark.parametrize("lost", ["a", "b"])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_no_member_is_held_for_one_that_is_lost_on_the_way(lost: str, steps: int) -> None:
    played = ready()
    for _ in range(steps):
        played.answer(FORMED_AT + 0.1)
    other = "b" if lost == "a" else "a"
    played.whole(other, 14.0)
    played.pending.clear()
    played.die(lost, 14.1)
    told = [name for name in played.said if name[0] in ("Serve", "PipelineOver")]
    assert told == [("PipelineOver", other), ("Serve", other)]
    assert played.record.reason == f"lost {lost}"


def test_a_pipeline_that_one_reports_to_have_left_is_over_for_all() -> None:
    played = running()
    here = replace(loading("a", 2), pipeline="scale-1-0")
    played.take(played.scale.on_report(replace(here, pipeline=None), 13.5), 13.5)
    assert played.said == [], "what it had said before it took its part says nothing"
    played.take(played.scale.on_report(here, 13.6), 13.6)
    played.take(played.scale.on_report(replace(here, pipeline=None), 13.7), 13.7)
    assert played.said == [("PipelineOver", "b"), ("PipelineOver", "a")]
    assert played.record.reason == "a left it"


def test_how_a_worker_gets_kv_of_its_part_is_kept_when_the_pipeline_is_over() -> None:
    played = running()
    here = replace(loading("a", 2), pipeline="scale-1-0")
    for report in (here, replace(here, kv_way="moved: move is set"), replace(here, pipeline=None)):
        played.take(played.scale.on_report(report, 13.6), 13.6)
    assert played.record.kv_ways == {"a": "moved: move is set"}


def test_a_leader_that_cannot_serve_holds_nobody() -> None:
    played = running()
    played.whole("a", 14.0)
    played.whole("b", 14.1)
    assert played.said == [("Serve", "b")]
    played.refuse(14.2)
    assert [command.node for command in played.pending if isinstance(command.message, Abort)] == ["b"]
    assert ("Serve", "a") in played.said
    assert played.record.reason == "lost b"


def test_a_scale_that_is_given_up_ends_it() -> None:
    played = running()
    played.tick(60.0)
    assert played.scale.ended
    assert {name for name, _ in played.said} == {"Abort"}
    assert played.record.reason == "lost b, a"


def test_the_first_token_of_its_leader_is_its_own_while_it_runs() -> None:
    played = running()
    played.scale.on_instance(happened("first_token", "b", 13.9), 14.0)
    played.scale.on_instance(happened("first_token", "a", 14.9), 15.0)
    assert played.record.first_token_at == 13.9


def test_a_planner_that_takes_over_forms_none_and_holds_nobody() -> None:
    record = running().scale.record()
    taken = scale_out(["a", "b", "c"], pipelines=[["a", "b", "c"]])
    reports = {worker: loading(worker, 2, kv_blocks=9) for worker in "abc"}
    taken.take_over(record, reports, 20.0)
    taken.replan([], {}, [], 20.0)
    [pipeline] = taken.record().pipelines
    assert replace(pipeline, reason="", ended_at=None) == record.pipelines[0]
    assert (pipeline.reason, pipeline.ended_at) == ("the planner was restarted", 20.0)
    assert taken.follow_up(20.1) == []
    assert serves(taken, "a") == ["a"]


def serves(scale: ScaleOut, worker: str) -> list[str]:
    commands = scale.on_transfer(transfer(worker, "whole", 21.0), 21.0)
    return [command.node for command in [*commands, *scale.follow_up(21.0)] if isinstance(command.message, Serve)]


def test_the_planner_s_word_that_it_is_over_says_why() -> None:
    played = ready()
    played.refuse(FORMED_AT)
    message = played.pending[0].message
    assert isinstance(message, PipelineOver)
    assert (message.pipeline, message.reason) == ("scale-1-0", "a refused its stages: no")


PLAN = TransferPlan(policy="binomial", flows=(), targets=("a", "b", "c"), tails=("b",), pipelines=(("a", "b"), ("c",)))


TEAMS = [["a"], ["b"], ["c"]]


def test_targets_of_a_pipeline_are_live_and_who_is_alone_is_not() -> None:
    targets, [why] = choose_live("pipeline", [PLAN], TEAMS, every_hop=False)
    assert targets == ["a", "b"]
    assert why == "these serve as soon as they have all between them: a, b"
    alone, [why] = choose_live("pipeline", [replace(PLAN, pipelines=(("c",),))], [["c"]], every_hop=False)
    assert (alone, why) == (
        [],
        "no target takes requests before it is whole: there is no other target to make a pipeline with",
    )


def test_when_each_should_be_ready_is_foreseen_where_rates_are_known() -> None:
    times = {"a": {0: 1.0, 1: 3.0}, "b": {0: 4.0, 1: 2.0}, "c": {0: 1.0, 1: 2.0}}
    assert foresee_pipelines([PLAN], TEAMS, times, tied=False) == [PlannedPipeline(members=["a", "b"], predicted=2.0)]
    assert foresee_pipelines([PLAN], TEAMS, {}, tied=False) == [PlannedPipeline(members=["a", "b"])]
