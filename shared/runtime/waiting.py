"""What tasks wait for: a change by another task, several coroutines that succeed or fail as one, or a deadline that
moves."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar


class Changes:
    """Wakes all waiting tasks at each change. Each looks whether it was the one that it waits for."""

    def __init__(self) -> None:
        self._next: asyncio.Event | None = None  # while a task waits: there are more changes than waits

    def tell(self) -> None:
        if self._next is not None:
            self._next.set()
            self._next = None

    async def wait(self) -> None:
        if self._next is None:
            self._next = asyncio.Event()
        await self._next.wait()


T = TypeVar("T")


async def together(*work: Coroutine[None, None, T]) -> list[T]:
    """Run all coroutines to their ends, and return what they returned, in their order. When one fails the others are
    cancelled, and its error alone is raised."""
    # No task group: that of Python 3.11 cancels the caller to wake it, and does not take that back. A time limit around
    # what fails again and again would then end in CancelledError, as if somebody else had cancelled the caller, too.
    running = [asyncio.create_task(one) for one in work]
    ended = set[asyncio.Task[T]]()
    try:
        if running:
            ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await end_tasks(*(one for one in running if not one.done()))
        errors = {one: one.exception() for one in running if not one.cancelled()}
    first = next((error for one, error in errors.items() if error is not None and one in ended), None)
    if first is not None:
        raise first
    return [one.result() for one in running]


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel all tasks, and return once they have ended.

    Where the caller is cancelled meanwhile, that is raised only then: what it does next may rely on their end.
    """
    running = {task for task in tasks if task is not None}
    for task in running:
        task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while running:
        try:
            _, running = await asyncio.wait(running)
        except asyncio.CancelledError as error:
            cancelled = error
            running = {task for task in running if not task.done()}
    if cancelled is not None:
        raise cancelled


class MovingDeadline:
    """A time limit on what runs within it, as `asyncio.timeout_at` has one: at `due` the task is cancelled, and
    TimeoutError raised. There is none while `due` is None.

    A timer is set anew once it fires, not at every move: those are many, and each would cost more than the event that
    it is for.
    """

    def __init__(self, due: float | None = None) -> None:
        self._due = due
        self._expired = False
        self._timer: asyncio.Handle | None = None  # uvloop has no timer for what is due within half a millisecond
        self._looks_at = 0.0  # when it fires
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0  # requests to cancel the task that were there before

    def move(self, due: float | None) -> None:
        """Have the time end at `due`, in the loop's time. One that has ended stays so."""
        self._due = due
        if due is not None and (self._timer is None or due < self._looks_at):
            self._arm(due)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._expired:
            self._timer, self._looks_at = asyncio.get_running_loop().call_at(due, self._look), due

    def _look(self) -> None:
        """End the time, unless it has been moved since the timer was set."""
        assert self._task is not None
        self._timer = None
        if self._due is None:
            return
        if self._due > self._looks_at:
            self._arm(self._due)
        else:
            self._expired = True
            self._task.cancel()

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None, "a coroutine runs in a task"
        self._cancelling = self._task.cancelling()
        self.move(self._due)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._task is not None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # The task may have been cancelled from outside as well; then the cancellation goes on.
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
