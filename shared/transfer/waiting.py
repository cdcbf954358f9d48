"""What senders wait for: a change by another task, a block that becomes ready, their turn.

A turn is one block a step over all the flows of a sender, as a schedule has it (LambdaScale 4.2).
"""

import asyncio
from collections import Counter
from collections.abc import Iterable


class Changes:
    """Everybody who waits goes on at the next change, and looks again whether it was the one that is waited for."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def tell(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self) -> None:
        await self._next.wait()


class BlocksLost(Exception):
    """The blocks that were waited for will never come; says why."""


class ReadyBlocks:
    """What a source may send: a host adds blocks as they are read, a worker as they are verified."""

    def __init__(self, ready: Iterable[int] = ()) -> None:
        self._ready = set(ready)
        self._lost: str | None = None
        self._changed = Changes()

    def add(self, index: int) -> None:
        self._ready.add(index)
        self._changed.tell()

    def lose(self, reason: str) -> None:
        """No further block will come."""
        self._lost = reason
        self._changed.tell()

    async def wait_ready(self, index: int) -> None:
        """Return once the block may be read. Raises BlocksLost."""
        while index not in self._ready:
            if self._lost is not None:
                raise BlocksLost(f"block {index}: {self._lost}")
            await self._changed.wait()


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
