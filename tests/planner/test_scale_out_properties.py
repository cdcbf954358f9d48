"""Whatever happens in whatever order, a scale out stays consistent and ends."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.planner.chains import CannotPlan
from services.planner.scale_out import ScaleOut
from services.planner.scales import Command
from shared.messages.membership import LeaseChanged
from shared.messages.scaling import Load, Send, Transfer
from tests.planner.made import host, scale_out, serving, snapshot, spare, transfer

TARGETS = ["a", "b", "c", "d"]
NODES = st.sampled_from(["s", *TARGETS])
PATIENCE = 5.0

happenings = st.one_of(
    st.tuples(st.just("answer"), st.integers(0, 5)),
    st.tuples(st.just("refuse"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["broken", "failed", "whole", "started", "dead"]), NODES),
    st.tuples(st.sampled_from(["replan", "no source", "wait"]), st.just("")),
)


class Played:
    """A scale, the commands that are not answered yet, and the targets that were told to give up."""

    def __init__(self, ranks: int) -> None:
        self.scale: ScaleOut = scale_out(TARGETS, ranks)
        self.now = 11.0
        self.ticket = 100
        self.pending: list[Command] = []
        self.tickets = dict.fromkeys(TARGETS, 0)
        self.take(self.scale.start(self.now))

    def take(self, commands: list[Command]) -> None:
        self.pending += commands
        for command in commands:
            if isinstance(command.message, Load):
                self.tickets[command.node] = command.message.ticket
        self.scale.check_invariants()

    def happen(self, what: str, which: int | str) -> None:
        self.now += 0.3
        if isinstance(which, int):
            self.answer(what, which)
        elif what in ("replan", "no source"):
            self.replan(found=what == "replan")
        elif what == "wait":
            self.take(self.scale.tick(self.now))
        elif what == "dead":
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
            answered = (
                self.scale.acknowledged(command, self.now)
                if what == "answer"
                else self.scale.refused(command, "no", self.now)
            )
            self.take(answered)

    def replan(self, *, found: bool) -> None:
        self.ticket += 1
        holders = [serving("s"), serving("t"), host("host-0")] if found else []
        if self.scale.wants_plan(self.now):
            try:
                self.take(self.scale.replan(snapshot(*holders, *map(spare, TARGETS)), {}, self.ticket, self.now))
            except CannotPlan as error:
                self.scale.not_planned(str(error), self.now)


@given(st.sampled_from([1, 2]), st.lists(happenings, max_size=40))
@settings(max_examples=300, deadline=None)
def test_whatever_happens_its_routes_fit_its_targets_and_patience_ends_it(
    ranks: int, events: list[tuple[str, int | str]]
) -> None:
    played = Played(ranks)
    for what, which in events:
        played.happen(what, which)
    played.now += PATIENCE
    played.take(played.scale.tick(played.now))
    assert played.scale.ended
    assert played.scale.reserved == frozenset()


@given(st.lists(st.tuples(st.sampled_from(["broken", "dead"]), NODES), max_size=3))
@settings(max_examples=100, deadline=None)
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


def test_a_send_is_never_commanded_before_every_target_of_its_chain_is_ready() -> None:
    played = Played(1)
    for target in reversed(TARGETS[1:]):
        [load] = [one for one in played.pending if one.node == target]
        played.pending.remove(load)
        played.take(played.scale.acknowledged(load, played.now))
        assert not any(isinstance(one.message, Send) for one in played.pending)
