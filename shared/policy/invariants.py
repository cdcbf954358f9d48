"""The rules of a policy's state: which moves are allowed, and what always holds. Pure.

Every change of a lifecycle goes through `advance` and its table. Tests check invariants after every event; production
does not.
"""

from collections.abc import Iterable, Mapping
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


class InvariantBroken(Exception):
    """A state breaks an invariant; the message names what is wrong with it."""


def check(broken: Iterable[str]) -> None:
    """Raise InvariantBroken where `broken`, a policy's list of what is wrong, has anything in it."""
    found = list(broken)
    if found:
        raise InvariantBroken("; ".join(found))
