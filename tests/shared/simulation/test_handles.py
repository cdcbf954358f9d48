"""Handles do what asyncio's do, and timers count the time of their process."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress

import pytest

from livescale.shared.runtime.clock import MOST_SECONDS
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.processes import Process
from livescale.shared.simulation.virtual_clock import machine_time
from livescale.shared.simulation.virtual_time import VirtualTimeLoop


def play(main: Callable[[], Coroutine[None, None, None]]) -> None:
    virtual_time.run(main(), limit_seconds=60)


def fail() -> None:
    raise ValueError("wrong")


def test_what_a_callback_in_no_process_raises_is_told_too() -> None:
    async def main() -> None:
        loop, told = asyncio.get_running_loop(), list[dict[str, object]]()
        assert isinstance(loop, VirtualTimeLoop)
        loop.set_exception_handler(lambda loop, context: told.append(context))
        loop.call_in_no_process(1.0, fail)
        await asyncio.sleep(2.0)
        assert [str(context["exception"]) for context in told] == ["wrong"]
        assert "fail" in str(told[0]["message"])

    play(main)


@pytest.mark.parametrize("timed", [False, True])
def test_what_a_callback_raises_is_told_and_ends_nothing(timed: bool) -> None:
    async def main() -> None:
        loop, told = asyncio.get_running_loop(), list[dict[str, object]]()
        loop.set_exception_handler(lambda loop, context: told.append(context))
        handle = loop.call_later(1.0, fail) if timed else loop.call_soon(fail)
        await asyncio.sleep(2.0)
        assert [(str(context["exception"]), context["handle"]) for context in told] == [("wrong", handle)]
        assert "fail" in str(told[0]["message"])

    play(main)


def test_what_is_cancelled_does_not_run_and_holds_nothing() -> None:
    async def main() -> None:
        loop, ran = asyncio.get_running_loop(), list[int]()
        handles = [loop.call_soon(ran.append, 1), loop.call_later(1.0, ran.append, 2)]
        for handle in [*handles, *handles]:
            handle.cancel()
        assert all(handle.cancelled() for handle in handles)
        assert "append" not in repr(handles)
        await asyncio.sleep(2.0)
        assert ran == []

    play(main)


def test_a_timer_counts_the_time_of_its_process_though_it_was_set_before_anyone_slept() -> None:
    async def main() -> None:
        loop, fired = asyncio.get_running_loop(), list[tuple[str, float]]()
        process = Process()

        def fire(name: str) -> None:
            fired.append((name, machine_time()))

        loop.call_later(1.5, fire, "early", context=process.context())
        loop.call_later(4.0, fire, "late", context=process.context())
        loop.call_later(4.0, fire, "of nobody")
        await asyncio.sleep(1.0)
        process.stop()
        await asyncio.sleep(2.0)
        process.go_on()
        await asyncio.sleep(10.0)
        slept = 2.0 - MOST_SECONDS
        assert fired == [
            ("early", pytest.approx(1.5 + slept)),
            ("of nobody", 4.0),
            ("late", pytest.approx(4.0 + slept)),
        ]

    play(main)


async def order_of_ends(distance: int) -> list[int]:
    """The order in which a group cancels its tasks, where so many objects lie in memory between each two of them."""
    ended, between = list[int](), list[object]()

    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(9)
        finally:
            ended.append(number)

    with suppress(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(wait(number))
                between += [bytearray(100 + 37 * number) for _ in range(distance)]
            await asyncio.sleep(1)
            raise RuntimeError
    return ended


def test_tasks_of_a_set_have_an_order_that_does_not_depend_on_memory() -> None:
    first, *others = [virtual_time.run(order_of_ends(distance)) for distance in (0, 3, 11)]
    assert others == [first, first]
    assert sorted(first) == list(range(20))
