"""Invariants: what always holds of a policy's state. Tests check them after every event, production never. Pure."""

from collections.abc import Iterable


class InvariantBroken(Exception):
    """A state that must not be; names what is wrong with it."""


def check(broken: Iterable[str]) -> None:
    """Raises InvariantBroken where anything is broken."""
    found = list(broken)
    if found:
        raise InvariantBroken("; ".join(found))
