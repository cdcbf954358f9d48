"""An event loop whose clock jumps to the next timer instead of sleeping.

`run(main())` in a plain test function runs hours in milliseconds, the same way every time. Nothing scheduled and
nothing ready is a deadlock, and an error. Work given to threads (`run_in_executor`) takes no virtual time: the
clock stands still until it is done. Sockets do not belong here.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

DAY_SECONDS = 86_400.0
THREAD_SECONDS = 60.0  # real time that work in a thread may take before it counts as lost


class Deadlock(Exception):
    """Every task waits and no timer is set."""


class LeftoverTasks(Exception):
    """The main coroutine returned while tasks it had started still ran."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at time 0 and may not go past `limit_seconds`."""

    def __init__(self, limit_seconds: float = DAY_SECONDS) -> None:
        self.now = 0.0
        self.limit_seconds = limit_seconds
        self.in_threads = 0
        super().__init__(selector=_JumpingSelector(self))

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self.in_threads += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        self.in_threads += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self.in_threads -= 1

    def _thread_done(self, _: asyncio.Future[Any]) -> None:
        self.in_threads -= 1


class _JumpingSelector(selectors.SelectSelector):
    """Where the loop would sleep, moves its clock."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._loop.in_threads and timeout != 0:
            return self._wait_for_threads()
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock(f"every task waits, no timer is set: {_describe(asyncio.all_tasks(self._loop))}")
        self._loop.now += timeout
        if self._loop.now > self._loop.limit_seconds:
            raise TimeoutError(f"still running after {self._loop.limit_seconds:.0f} virtual seconds")
        return []

    def _wait_for_threads(self) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(THREAD_SECONDS)
        if not ready:
            raise Deadlock(f"{self._loop.in_threads} calls in threads took over {THREAD_SECONDS:.0f} s")
        return ready


def run(main: Coroutine[Any, Any, T], *, limit_seconds: float = DAY_SECONDS) -> T:
    """Run `main` under virtual time. Raises Deadlock, LeftoverTasks, and TimeoutError past the virtual limit."""
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(limit_seconds)) as runner:
        return runner.run(_supervised(main))


async def _supervised(main: Coroutine[Any, Any, T]) -> T:
    result = await main
    # Tasks that were cancelled or woken in the last moment get the turns they need to end.
    for _ in range(10):
        await asyncio.sleep(0)
    leftover = asyncio.all_tasks() - {asyncio.current_task()}
    if leftover:
        raise LeftoverTasks(_describe(leftover))
    return result


def _describe(tasks: set[asyncio.Task[Any]]) -> str:
    return ", ".join(sorted(f"{task.get_name()} ({_place(task)})" for task in tasks if not task.done()))


def _place(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    return f"{frames[-1].f_code.co_qualname}:{frames[-1].f_lineno}" if frames else "not started"
