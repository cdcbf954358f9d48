"""The targets of a scale out: how far each one is, along which flows it receives, and which of them lost theirs.
Pure."""

from collections.abc import Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from enum import StrEnum

from livescale.shared.messages.transfers import Flow, PlannedInstance
from livescale.shared.policy.invariants import StateMachine

REPLAN_SECONDS = 0.5  # between two new plans; the first one is made at once


class TargetState(StrEnum):
    """The states of a target. They are in the order in which a target gets on, which `ScaleTargets.lowest` uses."""

    STRANDED = "stranded"  # its upstream was lost: it keeps what arrived and waits for another
    COMMANDED = "commanded"
    ACCEPTED = "accepted"
    WHOLE = "whole"
    SERVING = "serving"
    FAILED = "failed"


MOVES = StateMachine(
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
    """The state of every target by worker id, in the order of the plan. Each begins as `COMMANDED`."""

    def __init__(self, workers: list[str]) -> None:
        self._states = dict.fromkeys(workers, TargetState.COMMANDED)

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, worker: str) -> bool:
        return worker in self._states

    def is_in(self, worker: str, *states: TargetState) -> bool:
        """Say whether this worker is a target in one of these states."""
        return self._states.get(worker) in states

    def all_in(self, *states: TargetState) -> list[str]:
        """Return the targets that are in one of these states."""
        return [worker for worker, state in self._states.items() if state in states]

    def lowest(self, instance: PlannedInstance) -> TargetState:
        """Return the state of an instance: that of its least advanced rank, but `FAILED` if any rank has failed."""
        states = {self._states[worker] for worker in instance.ranks}
        return TargetState.FAILED if TargetState.FAILED in states else min(states, key=list(TargetState).index)

    def move(self, worker: str, state: TargetState) -> None:
        """Change a target's state. Raises ValueError for a change that `MOVES` does not allow."""
        self._states[worker] = MOVES.advance(self._states[worker], state)


class StrandedTargets:
    """The targets that receive nothing, since their sender was lost, and when to look for another way.

    It remembers why each is stranded, which senders to avoid, and why the last attempt to replan found no plan.
    """

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
        """Note that a target is stranded and why. A new plan avoids `sender`."""
        self._why[worker] = why
        self.avoid.add(sender)

    def forget(self, worker: str) -> str:
        """Remove a target that is stranded no more. Returns why it was, or an empty string if it was not."""
        return self._why.pop(worker, "")

    def is_due(self, now: float) -> bool:
        """Say whether a target is stranded and it is time to look for another plan."""
        return bool(self._why) and now >= self._due

    def looked(self, now: float, no_plan: str = "") -> None:
        """Note that a new plan was looked for; `no_plan` says why there is none. The next attempt is due a while
        later."""
        self._due = now + REPLAN_SECONDS
        self._no_plan = no_plan or self._no_plan

    @property
    def problem(self) -> str:
        """Why the stranded still wait, to be put at the end of a sentence, or an empty string."""
        return f"; {self._no_plan}" if self._why and self._no_plan else ""


class FlowsUnderWay:
    """The flows along which a target still receives, in the order in which they were planned."""

    def __init__(self, flows: Iterable[Flow]) -> None:
        self._flows = list(flows)
        self._sent: set[int] = set()  # tickets of the flows whose sender was told

    def __iter__(self) -> Iterator[Flow]:
        return iter(self._flows)

    def add(self, flows: Iterable[Flow]) -> None:
        self._flows += flows

    def into(self, worker: str) -> list[Flow]:
        """Return the flows that this worker receives."""
        return [flow for flow in self._flows if flow.receiver == worker]

    def out_of(self, node: str) -> list[Flow]:
        """Return the flows that this node sends, in the order of the plan."""
        return [flow for flow in self._flows if flow.sender == node]

    def drop(self, receivers: Iterable[str]) -> None:
        """Remove all flows to these receivers, as they receive nothing more."""
        gone = set(receivers)
        self._flows = [flow for flow in self._flows if flow.receiver not in gone]

    def behind(self, workers: Collection[str]) -> set[str]:
        """Return all that receive from one of these workers, directly or through others."""
        behind, ahead = set[str](), set(workers)
        while ahead:
            ahead = {flow.receiver for flow in self._flows if flow.sender in ahead} - behind
            behind |= ahead
        return behind

    def take_unsent(self, ready: AbstractSet[str], awaited: AbstractSet[str]) -> Iterator[tuple[str, list[Flow]]]:
        """Yield each sender that has yet to be told, with its flows to receivers that are `ready`.

        A sender is left out while one of its receivers is `awaited`: it is told once, of all of them. What was yielded
        counts as told.
        """
        unsent: dict[str, list[Flow]] = {}
        for flow in self._flows:
            if flow.ticket not in self._sent and (flow.receiver in ready or flow.receiver in awaited):
                unsent.setdefault(flow.sender, []).append(flow)
        for sender, flows in unsent.items():
            if not any(flow.receiver in awaited for flow in flows):
                self._sent.update(flow.ticket for flow in flows)
                yield sender, flows
