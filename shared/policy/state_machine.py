"""A state machine is a table of allowed moves, and every change of state goes through `advance`. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=str)


@dataclass(frozen=True)
class StateMachine(Generic[S]):
    """The states of `what` ("a lease"): `table` has, for each state, those that may follow it."""

    what: str
    table: Mapping[S, frozenset[S]]

    def advance(self, old: S, new: S) -> S:
        """The new state. Raises ValueError on a move that is not in the table."""
        if new not in self.table[old]:
            raise ValueError(f"{self.what} cannot go from {old} to {new}")
        return new
