"""Whatever happens in whatever order, a scale out stays consistent and ends."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.planner.scale_out import ScaleOut
from services.planner.scales import Command
from shared.messages.live import Help
from shared.messages.membership import LeaseChanged
from shared.messages.transfers import Abort, Load, Outflow, Send, Transfer
from tests.planner.made import chain, member, scale_out, serving, transfer

TARGETS = ["a", "b", "c", "d"]
NODES = st.sampled_from(["s", *TARGETS])
PATIENCE = 5.0

happenings = st.one_of(
    st.tuples(st.just("answer"), st.integers(0, 5)),
    st.tuples(st.just("refuse"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["broken", "failed", "whole", "started", "dead"]), NODES),
    st.tuples(st.sampled_from(["replan", "no source", "wait"]), st.just("")),
    st.tuples(st.sampled_from(["serves", "drains"]), st.sampled_from(["s", "t"])),
)


class Played:
    """A scale, the commands that are not answered yet, and the targets that were told to give up."""

    def __init__(self, ranks: int) -> None:
        self.scale: ScaleOut = scale_out(TARGETS, ranks, live=["b", "d"], workers=[serving("s")])
        self.now = 11.0
        self.ticket = 100
        self.pending: list[Command] = []
        self.helped: dict[str, list[str]] = {}  # by helper, as it was told
        self.tickets = dict.fromkeys(TARGETS, 0)  # of the flow that each receives along
        self.take(self.scale.start(self.now))

    def take(self, commands: list[Command]) -> None:
        self.pending += commands
        for command in commands:
            if isinstance(command.message, Load):
                self.tickets[command.node] = command.message.inflows[0].ticket
        self.scale.check_invariants()
        for command in self.scale.helps():
            self.pending.append(command)
            assert isinstance(command.message, Help)
            self.helped[command.node] = [target.id for target in command.message.targets]
        assert self.scale.helps() == []

    def happen(self, what: str, which: int | str) -> None:
        self.now += 0.3
        if isinstance(which, int):
            self.answer(what, which)
        elif what in ("replan", "no source"):
            self.replan(found=what == "replan")
        elif what == "wait":
            self.take(self.scale.tick(self.now))
        elif what in ("serves", "drains"):
            self.helped.pop(which, None)  # whoever drains helps nobody
            report = serving(which, state="serving" if what == "serves" else "draining")
            self.take(self.scale.on_report(report, self.now))
        elif what == "dead":
            self.helped.pop(which, None)
            change = LeaseChanged(service="worker", id=which, epoch=5, state="dead", reason="silent", at=self.now)
            self.take(self.scale.on_lease(change, self.now))
        elif what == "broken":
            ticket = self.tickets.get(which, 0)
            event = Transfer(plan_id="scale-1", node=which, state="broken", at=self.now, ticket=ticket, error="gone")
            self.take(self.scale.on_transfer(event, self.now))
        else:
            self.take(self.scale.on_transfer(transfer(which, what, self.now), self.now))

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
        """One chain, from another worker, through all who are stranded."""
        if not self.scale.wants_plan(self.now):
            return
        if not found:
            self.scale.not_planned("nobody holds the model", self.now)
            return
        path = ["t", *self.scale.stranded]
        flows = chain(*path, ticket=self.ticket)
        self.ticket += len(flows)
        self.take(self.scale.replan(flows, {id: member(id, epoch=5) for id in path}, [], self.now))


@given(st.sampled_from([1, 2]), st.lists(happenings, max_size=40))
@settings(max_examples=300)
def test_whatever_happens_its_flows_fit_its_targets_and_patience_ends_it(
    ranks: int, events: list[tuple[str, int | str]]
) -> None:
    played = Played(ranks)
    for what, which in events:
        played.happen(what, which)
    played.now += PATIENCE
    played.take(played.scale.tick(played.now))
    assert played.scale.ended
    assert played.scale.reserved == frozenset()
    failed = {command.node for command in played.pending if isinstance(command.message, Abort)}
    assert failed.isdisjoint(target for targets in played.helped.values() for target in targets)


@given(st.lists(st.tuples(st.sampled_from(["broken", "dead"]), NODES), max_size=3))
@settings(max_examples=100)
def test_every_target_that_stays_alive_comes_to_serve(events: list[tuple[str, str]]) -> None:
    played = Played(1)
    for what, which in events:
        played.happen(what, which)
    for _ in range(40):
        played.now += 0.3
        played.replan(found=True)
        while played.pending:
            played.answer("answer", 0)
        for target in TARGETS:
            played.take(played.scale.on_transfer(transfer(target, "whole", played.now), played.now))
    record = played.scale.record()
    dead = {which for what, which in events if what == "dead"}
    served = {phase.node for phase in record.phases if phase.name == "serving"}
    assert served == set(TARGETS) - dead
    assert record.state == ("failed" if dead - {"s"} else "done")


def test_a_send_is_never_commanded_before_its_receiver_is_ready() -> None:
    played = Played(1)
    for target in TARGETS:
        assert not any(flow.downstream.id == target for flow in sent(played))
        [load] = [one for one in played.pending if one.node == target and isinstance(one.message, Load)]
        played.pending.remove(load)
        played.take(played.scale.acknowledged(load, played.now))
        assert any(flow.downstream.id == target for flow in sent(played))


def sent(played: Played) -> list[Outflow]:
    messages = [one.message for one in played.pending]
    return [flow for message in messages if isinstance(message, Send) for flow in message.outflows]
