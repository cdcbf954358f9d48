"""What the loop of virtual time runs: callbacks, and timers that count the time of their process.

They do what asyncio's own do, but for its debug mode: a simulation makes millions of them.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

ROUNDING_SECONDS = 1e-9


class Sleeper(Protocol):
    """A simulated process, which can be stopped; `away` is how long it has been so far. Without a `pid` it has that of
    the real process."""

    pid: int | None
    is_stopped: bool
    away: float

    def put_off(self, handle: asyncio.Handle) -> None:
        """Keep a call that is due while the process is stopped, until it goes on."""


# The simulated process that a context belongs to; None outside of all.
process_of: ContextVar[Sleeper | None] = ContextVar("process", default=None)


class TimerLoop(Protocol):
    """What handles need of their loop. `slept`: whether any process has been stopped so far."""

    now: float
    slept: bool
    at_machine_timer: bool
    _timer_cancelled_count: int

    def arm(self, timer: "VirtualTimer", at: float) -> None: ...

    def call_exception_handler(self, context: dict[str, object]) -> None: ...


class VirtualHandle(asyncio.Handle):
    """A callback that runs in the next turn of the loop."""

    __slots__ = ()
    _callback: Callable[..., object] | None
    _context: Context
    _loop: TimerLoop
    _repr: str | None
    _source_traceback: None

    def __init__(
        self, callback: Callable[..., object], args: tuple[object, ...], loop: TimerLoop, context: Context
    ) -> None:
        self._context = context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = None, ()

    def _run(self) -> None:
        try:
            self._context.run(self._callback, *self._args)  # type: ignore[arg-type]  # it is not cancelled
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 whatever it is, the loop's handler tells of it
            tell(self, self._loop, error)


class VirtualTimer(asyncio.TimerHandle):
    """A callback that runs at a time of its process; outside of all, of the machine."""

    __slots__ = ()
    _callback: Callable[..., object] | None
    _context: Context
    _loop: TimerLoop
    _repr: str | None
    _source_traceback: None
    _when: float
    _scheduled: bool

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: TimerLoop,
        context: Context,
    ) -> None:
        self._context = context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = False

    def cancel(self) -> None:
        if not self._cancelled:
            self._loop._timer_cancelled_count += self._scheduled
            self._cancelled = True
            self._callback, self._args = None, ()

    def _run(self) -> None:
        if self._loop.slept and self._is_put_off():
            return
        try:
            self._context.run(self._callback, *self._args)  # type: ignore[arg-type]  # it is not cancelled
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 whatever it is, the loop's handler tells of it
            tell(self, self._loop, error)

    def _is_put_off(self) -> bool:
        """Put it off where its process is stopped, or has been and is not as far yet."""
        process = self._context.get(process_of)
        if process is None:
            return False
        if process.is_stopped:
            process.put_off(self)
            return True
        if process.away and self._when + process.away - self._loop.now > ROUNDING_SECONDS:
            self._loop.arm(self, self._when + process.away)
            return True
        return False


class MachineTimer:
    """A callback at a time of the machine, outside of all processes and contexts, that is due with others. It cannot be
    cancelled."""

    __slots__ = ("_callback", "_loop")
    _cancelled = False

    def __init__(self, callback: Callable[[], object], loop: TimerLoop) -> None:
        self._callback = callback
        self._loop = loop

    def _run(self) -> None:
        self._loop.at_machine_timer = True
        try:
            self._callback()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 whatever it is, the loop's handler tells of it
            tell(self._callback, self._loop, error)
        finally:
            self._loop.at_machine_timer = False


class VirtualTask(asyncio.Task[T]):
    """A task whose place in a set does not depend on where it lies in memory: who cancels a set of tasks, as a group of
    tasks does, goes through it in the same order in every run."""

    def __init__(
        self,
        number: int,
        work: Coroutine[Any, Any, T],
        loop: asyncio.AbstractEventLoop,
        context: Context | None = None,
    ) -> None:
        self._number = number
        super().__init__(work, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number


def tell(handle: object, loop: TimerLoop, error: BaseException) -> None:
    """Tell the loop's handler of an error that nobody else hears of."""
    loop.call_exception_handler(
        {"message": f"Exception in callback of {handle!r}", "exception": error, "handle": handle}
    )


def describe(tasks: set[asyncio.Task[object]]) -> str:
    """Name the tasks that have not ended, and where each waits."""
    return ", ".join(sorted(f"{task.get_name()} ({_place(task)})" for task in tasks if not task.done()))


def _place(task: asyncio.Task[object]) -> str:
    frames = task.get_stack(limit=1)
    return f"{frames[-1].f_code.co_qualname}:{frames[-1].f_lineno}" if frames else "not started"
