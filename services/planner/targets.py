"""The targets of a scale out: how far each is, along which flows it receives, and which of them lost theirs. Pure."""

from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum

from livescale.shared.messages.transfers import Flow, PlannedInstance
from livescale.shared.moves import Moves


class TargetState(StrEnum):
    """In the order in which a target comes along."""

    STRANDED = "stranded"  # its upstream was lost: it keeps what arrived and waits for another
    COMMANDED = "commanded"
    ACCEPTED = "accepted"
    WHOLE = "whole"
    SERVING = "serving"
    FAILED = "failed"


MOVES = Moves(
    "a target",
    {
        TargetState.STRANDED: frozenset({TargetState.COMMANDED, TargetState.WHOLE, TargetState.FAILED}),
        TargetState.COMMANDED: frozenset({TargetState.ACCEPTED, TargetState.STRANDED, TargetState.FAILED}),
        TargetState.ACCEPTED: frozenset({TargetState.WHOLE, TargetState.STRANDED, TargetState.FAILED}),
        TargetState.WHOLE: frozenset({TargetState.SERVING, TargetState.FAILED}),
        TargetState.SERVING: frozenset(),
        TargetState.FAILED: frozenset(),
    },
)

RECEIVING = (TargetState.COMMANDED, TargetState.ACCEPTED)
UNDER_WAY = (TargetState.STRANDED, *RECEIVING, TargetState.WHOLE)
ENDED = (TargetState.SERVING, TargetState.FAILED)


class ScaleTargets:
    """The state of every target, by worker, in the order of the plan."""

    def __init__(self, workers: list[str]) -> None:
        self._states = dict.fromkeys(workers, TargetState.COMMANDED)

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, worker: str) -> bool:
        return worker in self._states

    def is_in(self, worker: str, *states: TargetState) -> bool:
        return self._states.get(worker) in states

    def all_in(self, *states: TargetState) -> list[str]:
        return [worker for worker, state in self._states.items() if state in states]

    def lowest(self, instance: PlannedInstance) -> TargetState:
        """An instance is as far as the rank that is least far; failed if one of them is."""
        states = {self._states[worker] for worker in instance.ranks}
        return TargetState.FAILED if TargetState.FAILED in states else min(states, key=list(TargetState).index)

    def move(self, worker: str, state: TargetState) -> None:
        """Raises ValueError on a move that is not in the table."""
        self._states[worker] = MOVES.advance(self._states[worker], state)


REPLAN_SECONDS = 0.5  # the first new plan is made at once, the next ones not sooner than this after it


class StrandedTargets:
    """Why each of them is stranded, whom to avoid as a sender, and what stood in the way of the last new plan."""

    def __init__(self, now: float) -> None:
        self._why: dict[str, str] = {}  # by target
        self._due = now
        self._no_plan = ""
        self.avoid: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter(self._why)

    def __len__(self) -> int:
        return len(self._why)

    def __contains__(self, worker: object) -> bool:
        return worker in self._why

    def add(self, worker: str, why: str, sender: str) -> None:
        """Better not from `sender` again."""
        self._why[worker] = why
        self.avoid.add(sender)

    def forget(self, worker: str) -> str:
        """Why it was stranded, if it was."""
        return self._why.pop(worker, "")

    def is_due(self, now: float) -> bool:
        """Whether it is time to look for another way."""
        return bool(self._why) and now >= self._due

    def looked(self, now: float, no_plan: str = "") -> None:
        """Another way was looked for; why there is none, if there is none."""
        self._due = now + REPLAN_SECONDS
        self._no_plan = no_plan or self._no_plan

    @property
    def problem(self) -> str:
        """What they wait for, as the end of a sentence."""
        return f"; {self._no_plan}" if self._why and self._no_plan else ""


class FlowsUnderWay:
    """Those along which somebody still receives, in the order in which they were planned."""

    def __init__(self, flows: Iterable[Flow]) -> None:
        self._flows = list(flows)
        self._sent: set[int] = set()  # tickets of those whose sender was told

    def __iter__(self) -> Iterator[Flow]:
        return iter(self._flows)

    def add(self, flows: Iterable[Flow]) -> None:
        self._flows += flows

    def into(self, worker: str) -> list[Flow]:
        return [flow for flow in self._flows if flow.receiver == worker]

    def out_of(self, node: str) -> list[Flow]:
        return [flow for flow in self._flows if flow.sender == node]

    def drop(self, receivers: Iterable[str]) -> None:
        """These receive nothing any more."""
        gone = set(receivers)
        self._flows = [flow for flow in self._flows if flow.receiver not in gone]

    def behind(self, workers: Collection[str]) -> set[str]:
        """Who receives anything through these."""
        behind, ahead = set[str](), set(workers)
        while ahead:
            ahead = {flow.receiver for flow in self._flows if flow.sender in ahead} - behind
            behind |= ahead
        return behind

    def take_unsent(self, ready: Collection[str], awaited: Collection[str]) -> Iterator[tuple[str, list[Flow]]]:
        """Senders that are still to be told, with their flows to who is `ready`; not while a receiver is `awaited`."""
        unsent: dict[str, list[Flow]] = {}
        for flow in self._flows:
            if flow.ticket not in self._sent and (flow.receiver in ready or flow.receiver in awaited):
                unsent.setdefault(flow.sender, []).append(flow)
        for sender, flows in unsent.items():
            if not any(flow.receiver in awaited for flow in flows):
                self._sent.update(flow.ticket for flow in flows)
                yield sender, flows
