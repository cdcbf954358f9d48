"""Futures that fail when they are still waited for at a time of their own."""

import asyncio


class OverdueFutures:
    """Fails each of its futures with TimeoutError where it is not done when its time has come.

    One timer is for all of them, set for the first that is due: nearly all are done long before, and are taken out.
    """

    def __init__(self) -> None:
        self._due: dict[asyncio.Future[int], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, future: asyncio.Future[int], timeout: float) -> None:
        due = asyncio.get_running_loop().time() + timeout
        self._due[future] = due
        if self._timer is None or due < self._timer.when():
            self._arm(due)

    def discard(self, future: asyncio.Future[int]) -> None:
        """Let a future be: it is done, or nobody waits for it any more. The timer ends with the last one."""
        self._due.pop(future, None)
        if not self._due and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        """Fail what is due, and wait for the next."""
        assert self._timer is not None
        now, self._timer = self._timer.when(), None
        for future, due in self._due.items():
            if due <= now and not future.done():
                future.set_exception(TimeoutError())
        left = [due for due in self._due.values() if due > now]
        if left:
            self._arm(min(left))
