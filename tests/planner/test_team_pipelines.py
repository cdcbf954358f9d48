"""Execution pipelines of instances that are several workers (LambdaScale 4.3, case 2)."""

import pytest
from msgspec.structs import replace

from livescale.services.planner.live import choose_live
from livescale.services.planner.plans.execution_pipelines import team_pipelines
from livescale.services.planner.plans.plan import TransferPlan
from livescale.services.planner.running_scale import NodeCommand
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.model_parallel import Pipeline
from livescale.shared.messages.scaling import PipelineRecord
from livescale.shared.messages.transfers import Serve
from tests.control.fakes import BLOCKS
from tests.planner.samples import acknowledge, block_ready, loading, names, scale_out, transfer

TEAMS = [["a", "x"], ["b", "y"]]
OTHER = {"a": "x", "b": "y"}


class Played:
    """A scale to two instances of two workers, which are one pipeline."""

    def __init__(self) -> None:
        self.scale = scale_out([worker for team in TEAMS for worker in team], ranks=2, pipelines=[["a", "b"]])
        acknowledge(self.scale, self.scale.start(10.5))
        for first, second in TEAMS:
            for worker in (first, second):
                told = replace(loading(worker, 0, kv_blocks=7), instance=f"i-{first}", rank=int(worker == second))
                self.scale.on_report(told, 11.0)

    def follow(self, commands: list[NodeCommand], now: float) -> list[NodeCommand]:
        self.scale.check_invariants()
        return [*commands, *self.scale.follow_up(now)]

    def arrive(self, worker: str, *blocks: int, now: float) -> list[NodeCommand]:
        return [
            one
            for block in blocks
            for one in self.follow(self.scale.on_block(block_ready(worker, block, now), now), now)
        ]

    def whole(self, worker: str, now: float) -> list[NodeCommand]:
        self.arrive(worker, *range(BLOCKS), now=now)
        return self.follow(self.scale.on_transfer(transfer(worker, "whole", now), now), now)

    def answer(self, commands: list[NodeCommand], now: float) -> list[NodeCommand]:
        return [one for command in commands for one in self.follow(self.scale.acknowledged(command, now), now)]

    def formed(self) -> list[NodeCommand]:
        for team, blocks in zip(TEAMS, ((0, 1), (2, 3)), strict=True):
            for at, worker in enumerate(team):
                said = self.arrive(worker, *blocks, now=12.0 + at)
        return said

    def running(self) -> None:
        assert names(self.answer(self.answer(self.formed(), 13.1), 13.2)) == []

    @property
    def record(self) -> PipelineRecord:
        [record] = self.scale.record().pipelines
        return record


def test_it_is_formed_of_the_first_of_each_once_the_slowest_rank_has_its_blocks() -> None:
    played = Played()
    assert played.arrive("a", 0, 1, now=12.0) == []
    assert played.arrive("b", 2, 3, now=12.0) == []
    assert played.arrive("x", 0, 1, now=12.5) == []
    assert played.arrive("y", 2, now=12.7) == []
    [follower] = played.arrive("y", 3, now=13.0)
    assert isinstance(follower.message, Pipeline)
    assert [(one.node.id, one.first, one.stop) for one in follower.message.stages] == [("a", 0, 2), ("b", 2, 4)]
    assert follower.node == "b"
    assert names(played.answer([follower], 13.1)) == [("Pipeline", "a")]
    assert played.record.ready_at == 13.0


def test_each_serves_with_all_its_ranks_once_all_are_whole_the_leader_first() -> None:
    played = Played()
    played.running()
    assert [played.whole(worker, 14.0) for worker in "xby"] == [[], [], []], "SERVE is held, at any rank"
    switching = played.whole("a", 14.1)
    assert names(switching) == [("Serve", "a"), ("Serve", "x")]
    assert played.answer(switching[1:], 14.2) == [], "the leader has still to share its requests out"
    left = played.answer(switching[:1], 14.3)
    assert names(left) == [("Serve", "b"), ("Serve", "y")]
    played.answer(left, 14.4)
    assert (played.scale.state, played.record.reason) == ("done", "each of them is whole")


@pytest.mark.parametrize("lost", ["a", "b", "x", "y"])
@pytest.mark.parametrize("state", ["formed", "running"])
def test_an_instance_is_lost_with_the_first_of_its_ranks(lost: str, state: str) -> None:
    played = Played()
    getattr(played, state)()
    change = LeaseChanged(service="worker", id=lost, epoch=5, state="dead", reason="silent", at=14.0)
    said = names(played.follow(played.scale.on_lease(change, 14.0), 14.0))
    gone, left = ("a", "b") if lost in "ax" else ("b", "a")
    assert {("Abort", gone), ("Abort", OTHER[gone]), ("PipelineOver", left)} <= set(said)
    assert played.record.reason == f"lost {gone}"
    assert played.whole(left, 15.0) == []
    assert names(played.whole(OTHER[left], 15.1)) == [("Serve", left), ("Serve", OTHER[left])]


def test_where_an_instance_is_whole_there_is_nothing_to_gain() -> None:
    played = Played()
    played.whole("a", 12.0)
    assert played.record.reason == ""
    said = played.whole("x", 12.1)
    assert played.record.reason == "a is whole already"
    assert [one.node for one in said if isinstance(one.message, Serve)] == ["a", "x"]


def plan(*pipelines: tuple[str, ...]) -> TransferPlan:
    targets = tuple(node for nodes in pipelines for node in nodes)
    return TransferPlan(policy="binomial", flows=(), targets=targets, tails=(), pipelines=pipelines)


def test_pipelines_are_those_that_the_plans_of_all_ranks_have() -> None:
    """With one source and with two."""
    teams = [[f"{name}0", f"{name}1"] for name in "abcd"]
    one = [plan(("a0", "b0", "c0", "d0")), plan(("b1", "a1", "c1", "d1"))]
    assert team_pipelines([lane.pipelines for lane in one], teams) == [("a0", "b0", "c0", "d0")]
    two = [plan(("a0", "c0"), ("b0", "d0")), plan(("a1", "c1"), ("b1", "d1"))]
    assert choose_live("pipeline", two, teams, every_hop=False) == (
        ["a0", "c0", "b0", "d0"],
        ["these serve as soon as they have all between them: a0, c0; b0, d0"],
    )
    assert team_pipelines([[("a0", "b0"), ("c0",)], [("a1", "b1"), ("c1",)]], teams) == [("a0", "b0")]


def test_instances_whose_ranks_would_be_in_different_pipelines_are_in_none() -> None:
    teams = [[f"{name}0", f"{name}1"] for name in "abcd"]
    crossed = [plan(("a0", "b0"), ("c0", "d0")), plan(("a1", "c1"), ("b1", "d1"))]
    assert choose_live("pipeline", crossed, teams, every_hop=False) == (
        [],
        ["no target takes requests before it is whole: the plans of its ranks make different ones"],
    )
