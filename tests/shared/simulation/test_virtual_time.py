import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import Barrier

import pytest

from livescale.shared.runtime.clock import MOST_SECONDS, own_pid
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.processes import Process
from tests.clocks import LoopClock


def test_a_long_sleep_costs_no_real_time() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert virtual_time.run(main()) == pytest.approx(3600)
    assert time.monotonic() - started < 600


def test_timers_fire_in_the_order_of_their_deadlines() -> None:
    async def main() -> list[float]:
        seen: list[float] = []

        async def sleeper(seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append(seconds)

        await asyncio.gather(*(sleeper(seconds) for seconds in (3, 1, 2, 0.5)))
        return seen

    assert virtual_time.run(main()) == [0.5, 1, 2, 3]


def test_timers_of_one_moment_fire_in_the_order_of_setting_whoever_sets_others() -> None:
    async def main(others: int) -> list[int]:
        loop, seen = asyncio.get_running_loop(), list[int]()
        for number in range(50):
            loop.call_at(1.0, seen.append, number)
            for other in range(others):
                loop.call_at(number * other / 100, seen.__len__)
        await asyncio.sleep(2)
        return seen

    assert [virtual_time.run(main(others)) for others in (0, 1, 7)] == [list(range(50))] * 3


def test_timers_of_the_machine_and_of_processes_fire_in_one_order() -> None:
    async def main() -> list[float]:
        loop, seen = asyncio.get_running_loop(), list[float]()
        assert isinstance(loop, virtual_time.VirtualTimeLoop)
        for number, at in enumerate([1.0, 3.0, 1.0, 2.0, 2.0, 1.0, 3.0, 3.0]):
            note = partial(seen.append, at + number / 10)
            if number % 2:
                loop.call_in_no_process(at, note)
            else:
                loop.call_at(at, note)
        await asyncio.sleep(4)
        return seen

    assert virtual_time.run(main()) == [1.0, 1.2, 1.5, 2.3, 2.4, 3.1, 3.6, 3.7]


def test_messages_that_arrive_one_by_one_keep_their_place_among_timers() -> None:
    async def main() -> list[str]:
        loop, seen = virtual_time.running_loop(), list[str]()
        loop.call_in_no_process(2.0, partial(seen.append, "second"))
        loop.call_in_no_process(1.0, partial(loop.call_soon, seen.append, "what follows from the first"))
        loop.call_in_no_process(3.0, partial(seen.append, "one of two at a time"))
        loop.call_at(3.0, seen.append, "the other of two")
        loop.call_in_no_process(3.0, partial(seen.append, "one more"))
        await asyncio.sleep(4.0)
        return seen

    assert virtual_time.run(main()) == [
        "what follows from the first",
        "second",
        "one of two at a time",
        "the other of two",
        "one more",
    ]


def test_a_call_that_would_be_next_is_made_at_once() -> None:
    assert calls_that_are_next(beside=False) == ["next", "arrived", "later", "the task", "by a task"]


def test_a_call_that_would_not_be_next_waits_for_its_turn() -> None:
    assert calls_that_are_next(beside=True) == ["arrived", "beside", "next", "later", "the task", "by a task"]


def calls_that_are_next(*, beside: bool) -> list[str]:
    """What happens in which order: calls of a message that arrives, `beside` another or alone, and of a task."""

    async def main() -> list[str]:
        loop, seen = asyncio.get_running_loop(), list[str]()
        assert isinstance(loop, virtual_time.VirtualTimeLoop)

        def call_next(name: str) -> None:
            context, note = copy_context(), partial(seen.append, name)
            context.run(note) if loop.is_next(context) else loop.call_soon(note, context=context)

        def arrive() -> None:
            call_next("next")
            seen.append("arrived")
            call_next("later")

        loop.call_in_no_process(1.0, arrive)
        if beside:
            loop.call_in_no_process(1.0, lambda: seen.append("beside"))
        await asyncio.sleep(2.0)
        call_next("by a task")
        seen.append("the task")
        await asyncio.sleep(0)
        return seen

    return virtual_time.run(main())


def test_a_simulated_process_has_an_id_of_its_own() -> None:
    async def main() -> tuple[int, int]:
        context = Process(pid=7).context()
        inside = await asyncio.create_task(asyncio.sleep(0, own_pid), context=context)
        return await asyncio.create_task(asyncio.to_thread(inside), context=context), own_pid()

    assert virtual_time.run(main()) == (7, os.getpid())


def test_waiting_for_nothing_is_a_deadlock_that_names_the_task() -> None:
    async def main() -> None:
        await asyncio.create_task(asyncio.Event().wait(), name="the-stuck-one")

    with pytest.raises(virtual_time.Deadlock, match="the-stuck-one"):
        virtual_time.run(main())


def test_a_task_that_outlives_main_is_an_error() -> None:
    async def main() -> None:
        main.task = asyncio.create_task(asyncio.sleep(1), name="forgotten")  # type: ignore[attr-defined]

    with pytest.raises(virtual_time.LeftoverTasks, match="forgotten"):
        virtual_time.run(main())


def test_a_loop_without_end_stops_at_the_virtual_limit() -> None:
    async def main() -> None:
        ticks = 0
        while ticks >= 0:
            await asyncio.sleep(0.5)
            ticks += 1

    with pytest.raises(TimeoutError):
        virtual_time.run(main(), limit_seconds=1000)


def test_work_for_threads_takes_no_time_and_ends_in_the_order_in_which_it_was_asked_for() -> None:
    async def main() -> list[str]:
        loop, seen = asyncio.get_running_loop(), list[str]()
        timer = asyncio.create_task(asyncio.sleep(1))
        with ThreadPoolExecutor(2) as executor:
            works = {
                "slow": loop.run_in_executor(executor, time.sleep, 0.02),
                "fast": loop.run_in_executor(executor, time.sleep, 0),
                "to a thread": asyncio.ensure_future(asyncio.to_thread(time.sleep, 0.02)),
                "last": loop.run_in_executor(None, time.sleep, 0),
            }
            for name, work in works.items():
                assert not work.done()
                work.add_done_callback(lambda _, name=name: seen.append(name))  # type: ignore[misc]
            await asyncio.gather(*works.values())
        assert loop.time() == 0.0
        await timer
        return seen

    assert virtual_time.run(main()) == ["slow", "fast", "last", "to a thread"]


def test_work_that_fails_fails_whoever_asked_for_it() -> None:
    async def main() -> None:
        abandoned = asyncio.create_task(asyncio.to_thread(int, "no number either"))
        await asyncio.sleep(0)
        abandoned.cancel()
        with pytest.raises(ValueError, match="no number"):
            await asyncio.to_thread(int, "no number")

    virtual_time.run(main())


def test_the_clock_stands_still_while_threads_wait_for_each_other() -> None:
    async def main() -> float:
        loop, both = asyncio.get_running_loop(), Barrier(2)
        assert isinstance(loop, virtual_time.VirtualTimeLoop)
        timer = asyncio.create_task(asyncio.sleep(1))
        with ThreadPoolExecutor(2) as executor:
            await asyncio.gather(*(loop.run_in_thread(executor, both.wait, 5.0) for _ in range(2)))
        at = loop.time()
        await timer
        return at

    assert virtual_time.run(main()) == 0.0


def test_the_wall_clock_starts_at_the_given_epoch() -> None:
    async def main() -> float:
        clock = LoopClock(epoch=1_000_000.0)
        await asyncio.sleep(5)
        return clock.wall()

    assert virtual_time.run(main()) == pytest.approx(1_000_005)


def test_a_process_that_is_stopped_does_nothing_and_its_timers_leave_out_what_it_slept() -> None:
    async def main() -> list[tuple[str, float]]:
        process, clock, seen = Process(), LoopClock(epoch=100.0), list[tuple[str, float]]()
        word: asyncio.Queue[str] = asyncio.Queue()

        async def listen() -> None:
            try:
                async with asyncio.timeout(2.0):
                    seen.append((await word.get(), clock.now()))
            except TimeoutError:
                seen.append(("nothing", clock.now()))
            asyncio.get_running_loop().call_later(1.0, seen.append, ("never", 0.0)).cancel()
            await asyncio.sleep(1.0)
            seen.append(("slept", clock.now()))
            seen.append(("away", clock.away))
            seen.append(("wall", clock.wall()))

        task = asyncio.create_task(listen(), context=process.context())
        await asyncio.sleep(1.0)
        process.stop()
        await asyncio.sleep(9.0)
        word.put_nowait("word")
        assert seen == []
        process.go_on()
        await asyncio.sleep(0.5)
        process.stop()
        await asyncio.sleep(5.0)
        process.go_on()
        await task
        assert clock.now() == clock.wall() - 100.0 == 10.0 + 5.5 + 0.25
        return seen

    awake = 1.0 + MOST_SECONDS
    assert virtual_time.run(main()) == [
        ("word", awake),
        ("slept", awake + 1.0),
        ("away", 9.0 + 5.0 - 2 * MOST_SECONDS),
        ("wall", 100.0 + 15.75),
    ]
