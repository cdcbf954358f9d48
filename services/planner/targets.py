"""A new instance's life until it serves: each of its workers is a target of a scale out. Pure."""

from enum import StrEnum

from livescale.shared.messages.transfers import PlannedInstance
from livescale.shared.policy.state_machine import StateMachine


class TargetState(StrEnum):
    """In the order in which a target comes along."""

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


class Targets:
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
