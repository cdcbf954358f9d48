"""An event loop whose clock jumps to the next timer instead of sleeping.

`run(main())` in a plain test function runs hours in milliseconds, the same way every time. If nothing is scheduled and
nothing is ready, that is a deadlock, and an error. Work for threads (`run_in_executor`, `to_thread`) is done on the
spot, takes no virtual time and ends in the order in which it was asked for: threads would end in either order, and no
two runs would be the same. Sockets do not work here.

Tasks that a `Process` (`processes.py`) starts can be stopped and continued, each with a time of its own.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, copy_context
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from selectors import BaseSelector
from typing import Any, TypeVar, TypeVarTuple, cast

from livescale.shared.simulation.handles import (
    MachineTimer,
    VirtualHandle,
    VirtualTask,
    VirtualTimer,
    describe,
    process_of,
    tell,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

DAY_SECONDS = 86_400.0
MOST_CANCELLED = 50  # timers that may be left in the heap although they were cancelled
THREAD_SECONDS = 60.0  # real time that work in a thread may take before it counts as lost


class Deadlock(Exception):
    """Every task waits and no timer is set, so that nothing can ever happen."""


class LeftoverTasks(Exception):
    """The main coroutine returned while tasks it had started still ran."""


def running_loop() -> "VirtualTimeLoop":
    """The loop that runs the caller, which must be a task under virtual time."""
    return cast("VirtualTimeLoop", asyncio.get_running_loop())


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at 0, jumps to the next timer, and may not go past `limit_seconds`.

    Timers fire in the order of their times, and those of one moment in the order in which they were set: else it would
    depend on how many others are set, those of code that only looks on included.
    """

    # Attributes of asyncio's own loops that their types leave out.
    _ready: deque[asyncio.Handle | MachineTimer]
    _closed: bool
    _stopping: bool
    _clock_resolution: float
    _selector: BaseSelector
    _timer_cancelled_count: int

    def __init__(self, limit_seconds: float = DAY_SECONDS) -> None:
        self.now = 0.0
        self.limit_seconds = limit_seconds
        self.slept = False  # whether any process has been stopped so far
        self.in_threads = 0
        self.at_machine_timer = False
        self._numbers = count()
        self._timers: list[tuple[float, int, Any]] = []  # thousands
        # Few at a time, but nearly all: messages on their way.
        self._machine_timers: list[tuple[float, int, Callable[[], object]]] = []
        super().__init__()
        self.get_debug = bool  # type: ignore[method-assign]  # as the next: without Python, at each future
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self.set_task_factory(lambda _, work, **more: VirtualTask(next(self._numbers), work, self, **more))

    @property
    def away(self) -> float:
        """Seconds that the simulated process of the caller has slept."""
        process = process_of.get() if self.slept else None
        return 0.0 if process is None else process.away

    @property
    def pid(self) -> int | None:
        """The id of the simulated process of the caller; None where it has none."""
        process = process_of.get()
        return None if process is None else process.pid

    def time(self) -> float:
        return self.now - self.away if self.slept else self.now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        timer = VirtualTimer(when, callback, args, self, context)
        process = context.get(process_of) if self.slept else None
        at = when if process is None else when + process.away
        heappush(self._timers, (at, next(self._numbers), timer))  # as `arm`, without a call
        timer._scheduled = True
        return timer

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at((self.time() if self.slept else self.now) + delay, callback, *args, context=context)

    def call_in_no_process(self, when: float, callback: Callable[[], object]) -> None:
        """Call at this time of the machine, whatever becomes of the process that asks for it."""
        heappush(self._machine_timers, (when, next(self._numbers), callback))

    def arm(self, timer: VirtualTimer, at: float) -> None:
        """Let a timer fire at this time of the machine."""
        heappush(self._timers, (at, next(self._numbers), timer))
        timer._scheduled = True

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            self._check_closed()  # type: ignore[attr-defined]
        context = copy_context() if context is None else context
        handle = VirtualHandle(callback, args, self, context)
        process = context.get(process_of) if self.slept else None
        if process is None or not process.is_stopped:
            self._ready.append(handle)
        else:
            process.put_off(handle)
        return handle

    def is_next(self, context: Context) -> bool:
        """Whether all that the next turn would do is what the caller has `context` run soon.

        A message that arrives alone is so. Its reader may run at once, at the same time: then a turn is left out, and
        nothing changes its place. The caller does nothing afterwards, and asks once.
        """
        if not self.at_machine_timer or self._ready or self._stopping:
            return False
        if self.slept and (process := context.get(process_of)) is not None and process.is_stopped:
            return False
        self.at_machine_timer = False
        return True

    def _run_once(self) -> None:
        """Run what is ready and due, turn by turn until the loop is to stop: asyncio's own loop calls this for each.

        This is the turn of every event loop, but that it jumps where they sleep.
        """
        timers, machine_timers, ready = self._timers, self._machine_timers, self._ready
        while True:
            if not ready:
                self._run_lone()
            if timers and timers[0][2]._cancelled:
                self._forget_cancelled()
            if self.in_threads:
                self._look_at_threads()
            elif not ready and not self._stopping:
                self._jump()
            end = self.now + self._clock_resolution
            if (timers and timers[0][0] < end) or (machine_timers and machine_timers[0][0] < end):
                self._take_due(end)
            for _ in range(len(ready)):
                if not (handle := ready.popleft())._cancelled:
                    handle._run()
                del handle
            if self._stopping:
                return

    def _take_due(self, end: float) -> None:
        """Make all timers ready that are due before `end`, in their order."""
        while (first := self._first()) and first[0][0] < end:
            due = heappop(first)[2]
            if first is self._timers:
                due._scheduled = False
                self._ready.append(due)
            else:
                self._ready.append(MachineTimer(due, self))

    def _run_lone(self) -> None:
        """Run timers, each in a turn of its own, while nothing else is ready or due with them.

        Nearly all turns of a large system are these, and the rest of a turn would be most of what they cost.
        """
        timers, messages, ready = self._timers, self._machine_timers, self._ready
        resolution, limit = self._clock_resolution, self.limit_seconds
        due: Any = None
        try:
            while not (ready or self._stopping or self.in_threads):
                is_message = bool(messages) and not (timers and timers[0] < messages[0])
                heap: list[Any] = messages if is_message else timers
                if not heap or (not is_message and heap[0][2]._cancelled):
                    return
                first = heappop(heap)
                now = first[0] if first[0] > self.now else self.now
                end = now + resolution
                if now > limit or (messages and messages[0][0] < end) or (timers and timers[0][0] < end):
                    heappush(heap, first)
                    return
                self.now, due = now, first[2]
                del first  # it ends with its turn, and what it holds
                if is_message:
                    self.at_machine_timer = True
                    due()
                    self.at_machine_timer = False
                else:
                    due._scheduled = False
                    due._run()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 as in any turn
            tell(due, self, error)
        finally:
            self.at_machine_timer = False

    def _first(self) -> list[Any]:
        """The heap of the timer that is due first; an empty one where none is set."""
        timers, machine_timers = self._timers, self._machine_timers
        return machine_timers if machine_timers and not (timers and timers[0] < machine_timers[0]) else timers

    def _forget_cancelled(self) -> None:
        """Take out the cancelled timers that are due first; all of them, where there are many."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
            self._timer_cancelled_count -= 1
        if self._timer_cancelled_count > max(MOST_CANCELLED, len(timers) // 2):
            timers[:] = [entry for entry in timers if not entry[2]._cancelled]
            heapify(timers)
            self._timer_cancelled_count = 0

    def _jump(self) -> None:
        if not (first := self._first()):
            raise Deadlock(f"every task waits, no timer is set: {describe(asyncio.all_tasks(self))}")
        self.now = max(self.now, first[0][0])
        if self.now > self.limit_seconds:
            raise TimeoutError(f"still running after {self.limit_seconds:.0f} virtual seconds")

    def _look_at_threads(self) -> None:
        """See what threads have done. Time stands still as long as any works; where nothing else is to do, wait."""
        busy = self._ready or self._stopping
        found = self._selector.select(0 if busy else THREAD_SECONDS)
        if not busy and not found:
            raise Deadlock(f"{self.in_threads} calls in threads took over {THREAD_SECONDS:.0f} s")
        self._process_events(found)  # type: ignore[attr-defined]

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Do the work now, whatever the executor. Its end is seen in the next turn of the loop, as that of a thread."""
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 whatever it is, the caller gets it from the future
            self.call_soon(_fail, future, error)
        else:
            self.call_soon(end, future, result)
        return future

    def run_in_thread(self, executor: Executor, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Have a thread do work that waits for other threads. The clock stands still until it is done."""
        future = super().run_in_executor(executor, func, *args)
        self.in_threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: asyncio.Future[Any]) -> None:
        self.in_threads -= 1


def end(future: asyncio.Future[T], result: T) -> None:
    """Give a future its result, unless nobody waits for it any more."""
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


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
        raise LeftoverTasks(describe(leftover))
    return result
