"""Invariants: what always holds of a policy's state. Tests check them after every event; production does not. Pure."""

from collections.abc import Iterable


class InvariantBroken(Exception):
    """A state breaks an invariant; the message names what is wrong with it."""


def check(broken: Iterable[str]) -> None:
    """Raise InvariantBroken where `broken`, a policy's list of what is wrong, has anything in it."""
    found = list(broken)
    if found:
        raise InvariantBroken("; ".join(found))
