"""Turns: one block a step over all the flows of a sender, as a schedule has it (LambdaScale 4.2)."""

from collections import Counter
from collections.abc import Iterable

from livescale.shared.transfer.changes import Changes


class Turns:
    """What each flow, by its ticket, has left to send in which step. A step begins when no earlier one has anything
    left anywhere; a flow that ends early holds nobody up."""

    def __init__(self) -> None:
        self._left: dict[int, Counter[int]] = {}
        self._changed = Changes()

    def join(self, ticket: int, steps: Iterable[int]) -> None:
        """A flow has these steps to do, one a chunk; said again, these instead."""
        self._left[ticket] = Counter(steps)
        self._changed.tell()

    def leave(self, ticket: int) -> None:
        self._left.pop(ticket, None)
        self._changed.tell()

    def sent(self, ticket: int, step: int) -> None:
        left = self._left[ticket]
        left[step] -= 1
        if not left[step]:
            del left[step]
            self._changed.tell()

    async def reached(self, step: int) -> None:
        while any(other < step for left in self._left.values() for other in left):
            await self._changed.wait()
