"""Blocks that become ready one by one, and those who wait for them."""

from collections.abc import Iterable

from livescale.shared.transfer.changes import Changes


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
