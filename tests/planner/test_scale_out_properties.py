"""Whatever happens in whatever order, a scale out stays consistent and ends."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from livescale.services.planner.pipelines import SWITCH_TIMEOUT_SECONDS, SWITCH_TIMEOUT_SHARE
from livescale.services.planner.running_scale import NodeCommand
from livescale.services.planner.scale_out import ScaleOut
from livescale.shared.messages.live import Help
from livescale.shared.messages.membership import LeaseChanged
from livescale.shared.messages.transfers import Abort, Load, Outflow, Send, Serve, Transfer
from tests.control.fakes import BLOCKS
from tests.planner.samples import block_ready, chain, loading, member, scale_out, serving, transfer

TARGETS = ["a", "b", "c", "d"]
NODES = st.sampled_from(["s", *TARGETS])
PATIENCE = 5.0

advances = st.one_of(
    st.tuples(st.just("between them"), st.sampled_from(["ac", "bd"])),
    st.tuples(st.just("all answer"), st.just("")),
)
any_event = st.one_of(
    st.tuples(st.just("answer"), st.integers(0, 5)),
    st.tuples(st.just("refuse"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["broken", "failed", "whole", "started", "dead"]), NODES),
    st.tuples(st.sampled_from(["replan", "no source", "wait"]), st.just("")),
    st.tuples(st.sampled_from(["serves", "drains"]), st.sampled_from(["s", "t"])),
    st.tuples(st.sampled_from(["first half", "second half"]), st.sampled_from(TARGETS)),
    advances,
)
losses = st.tuples(st.sampled_from(["broken", "dead"]), NODES)
modes = st.sampled_from([{"live": ["b", "d"]}, {"pipelines": [["a", "c"], ["b", "d"]]}])


class Played:
    """A scale, the commands that are not answered yet, and the targets that were told to give up."""

    def __init__(self, ranks: int, mode: Mapping[str, Any]) -> None:
        self.scale: ScaleOut = scale_out(TARGETS, ranks, workers=[serving("s")], **mode)
        self.now = 11.0
        self.ticket = 100
        self.pending: list[NodeCommand] = []
        self.helped: dict[str, list[str]] = {}  # by helper, as it was told
        self.tickets = dict.fromkeys(TARGETS, 0)  # of the flow that each receives along
        self.serves: set[str] = set()  # the workers that were told to
        self.aborted: set[str] = set()
        self.take(self.scale.start(self.now))
        for target in TARGETS:
            self.take(self.scale.on_report(loading(target, 0, kv_blocks=9), self.now))

    def take(self, commands: list[NodeCommand]) -> None:
        commands = [*commands, *self.scale.follow_up(self.now)]
        self.pending += commands
        for command in commands:
            match command.message:
                case Load() as load:
                    self.tickets[command.node] = load.inflows[0].ticket
                case Help() as help:
                    self.helped[command.node] = [target.id for target in help.targets]
                case Serve():
                    self.serves.add(command.node)
                case Abort():
                    self.aborted.add(command.node)
        self.scale.check_invariants()
        assert self.scale.follow_up(self.now) == []

    def happen(self, what: str, which: int | str) -> None:
        self.now += 0.3
        if isinstance(which, int):
            self.answer(what, which)
        elif what in ("replan", "no source"):
            self.replan(found=what == "replan")
        elif what == "wait":
            self.take(self.scale.tick(self.now))
        elif what in ("serves", "drains"):
            self.helped.pop(which, None)  # a worker that drains helps no target
            report = serving(which, state="serving" if what == "serves" else "draining")
            self.take(self.scale.on_report(report, self.now))
        elif what == "dead":
            self.helped.pop(which, None)
            change = LeaseChanged(service="worker", id=which, epoch=5, state="dead", reason="silent", at=self.now)
            self.take(self.scale.on_lease(change, self.now))
        elif what == "between them":
            self.arrive("first half", which[0])
            self.arrive("second half", which[1])
        elif what in ("first half", "second half"):
            self.arrive(what, which)
        elif what == "all answer":
            self.answer_all()
        elif what == "broken":
            ticket = self.tickets.get(which, 0)
            event = Transfer(plan_id="scale-1", node=which, state="broken", at=self.now, ticket=ticket, error="gone")
            self.take(self.scale.on_transfer(event, self.now))
        else:
            self.take(self.scale.on_transfer(transfer(which, what, self.now), self.now))

    def arrive(self, part: str, worker: str) -> None:
        for index in range(BLOCKS // 2) if part == "first half" else range(BLOCKS // 2, BLOCKS):
            self.take(self.scale.on_block(block_ready(worker, index, self.now), self.now))

    def answer_all(self) -> None:
        while self.pending:
            self.answer("answer", 0)

    def answer(self, what: str, which: int) -> None:
        if self.pending:
            command = self.pending.pop(which % len(self.pending))
            if what == "refuse" and isinstance(command.message, Help):
                self.helped.pop(command.node, None)
            answered = (
                self.scale.acknowledged(command, self.now)
                if what == "answer"
                else self.scale.refused(command, "no", self.now)
            )
            self.take(answered)

    def replan(self, *, found: bool) -> None:
        """Return one chain, from another worker, through all stranded targets."""
        if not self.scale.wants_plan(self.now):
            return
        if not found:
            self.scale.delivery.stranded.looked(self.now, "nobody holds the model")
            return
        path = ["t", *self.scale.delivery.lacking]
        flows = chain(*path, ticket=self.ticket)
        self.ticket += len(flows)
        self.take(self.scale.replan(flows, {id: member(id, epoch=5) for id in path}, [], self.now))


@given(st.sampled_from([1, 2]), modes, st.lists(any_event, max_size=40))
@settings(max_examples=400)
def test_whatever_happens_its_flows_fit_its_targets_and_patience_ends_it(
    ranks: int, mode: Mapping[str, Any], events: list[tuple[str, int | str]]
) -> None:
    played = Played(ranks, mode)
    for what, which in events:
        played.happen(what, which)
    played.now += PATIENCE
    played.take(played.scale.tick(played.now))
    assert played.scale.ended
    assert played.scale.reserved == frozenset()
    failed = {command.node for command in played.pending if isinstance(command.message, Abort)}
    if "live" in mode:  # a member of a pipeline may have been told of a leader that was lost meanwhile
        assert failed.isdisjoint(target for targets in played.helped.values() for target in targets)


@given(st.lists(any_event, max_size=40))
@settings(max_examples=300)
def test_no_pipeline_holds_anybody_beyond_its_patience(events: list[tuple[str, int | str]]) -> None:
    played = Played(1, {"pipelines": [["a", "c"], ["b", "d"]]})
    for what, which in events:
        played.happen(what, which)
    ran = played.now - 11.0
    played.now += max(SWITCH_TIMEOUT_SECONDS, SWITCH_TIMEOUT_SHARE * ran)
    played.take([])
    played.answer_all()
    whole = {phase.node for phase in played.scale.record().phases if phase.name == "whole"}
    assert whole <= played.serves | played.aborted


@given(modes, st.lists(st.one_of(losses, advances), max_size=6))
@settings(max_examples=150)
def test_every_target_that_stays_alive_comes_to_serve(mode: Mapping[str, Any], events: list[tuple[str, str]]) -> None:
    played = Played(1, mode)
    for what, which in events:
        played.happen(what, which)
    for _ in range(40):
        played.now += 0.3
        played.replan(found=True)
        played.answer_all()
        for target in TARGETS:
            played.take(played.scale.on_transfer(transfer(target, "whole", played.now), played.now))
    record = played.scale.record()
    dead = {which for what, which in events if what == "dead"}
    served = {phase.node for phase in record.phases if phase.name == "serving"}
    assert served == set(TARGETS) - dead
    assert record.state == ("failed" if dead - {"s"} else "done")


def test_a_send_is_never_commanded_before_its_receiver_is_ready() -> None:
    played = Played(1, {})
    for target in TARGETS:
        assert not any(flow.downstream.id == target for flow in sent(played))
        [load] = [one for one in played.pending if one.node == target and isinstance(one.message, Load)]
        played.pending.remove(load)
        played.take(played.scale.acknowledged(load, played.now))
        assert any(flow.downstream.id == target for flow in sent(played))


def sent(played: Played) -> list[Outflow]:
    messages = [one.message for one in played.pending]
    return [flow for message in messages if isinstance(message, Send) for flow in message.outflows]
