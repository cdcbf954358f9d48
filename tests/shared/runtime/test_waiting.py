"""Waiting for coroutines that succeed or fail as one, and within a deadline that moves."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from livescale.shared.runtime.waiting import MovingDeadline, end_tasks, together
from livescale.shared.simulation.virtual_clock import machine_time
from livescale.shared.simulation.virtual_time import run, running_loop


async def test_results_come_in_the_order_of_the_coroutines() -> None:
    first_may_end = asyncio.Event()

    async def first() -> int:
        await first_may_end.wait()
        return 1

    async def second() -> int:
        first_may_end.set()
        return 2

    assert await together(first(), second()) == [1, 2]
    assert await together() == []


async def test_when_one_fails_the_others_are_cancelled_and_its_error_alone_is_raised() -> None:
    cancelled = list[str]()

    async def wait_long(name: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    async def fail() -> None:
        raise ValueError("of one")

    with pytest.raises(ValueError, match=r"^of one$"):
        await together(wait_long("a"), fail(), wait_long("b"))
    assert sorted(cancelled) == ["a", "b"]  # a group of tasks cancels them in any order


async def test_a_time_limit_around_what_fails_again_and_again_is_a_time_limit() -> None:
    async def fail() -> None:
        await asyncio.sleep(0.001)
        raise ValueError("again")

    async def try_again() -> None:
        async with asyncio.timeout(0.05):
            while True:
                with pytest.raises(ValueError, match="again"):
                    await together(fail(), fail())

    with pytest.raises(TimeoutError):
        await try_again()


async def test_tasks_have_ended_also_where_the_caller_is_cancelled_meanwhile() -> None:
    may_end = asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await may_end.wait()

    slow, quick = asyncio.create_task(slow_to_end()), asyncio.create_task(asyncio.Event().wait())
    await asyncio.sleep(0)
    ending = asyncio.create_task(end_tasks(slow, None, quick))
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.sleep(0)
    assert quick.cancelled()
    assert not slow.done()
    assert not ending.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert slow.cancelled()


FOREVER = 1e6


def ended_at(act: Callable[[], Awaitable[None]]) -> float:
    """When the time of what `act` does ended."""

    async def main() -> float:
        with pytest.raises(TimeoutError):
            await act()
        return machine_time()

    return run(main())


@pytest.mark.parametrize(
    ("first", "moves", "ends"),
    [
        (5.0, {}, 5.0),
        (5.0, {1.0: 9.0, 2.0: 12.0}, 12.0),
        (5.0, {1.0: 3.0}, 3.0),
        (5.0, {1.0: None, 7.0: 8.0}, 8.0),
        (None, {2.0: 2.5}, 2.5),
        (5.0, {1.0: 9.0, 6.0: 7.0}, 7.0),
    ],
)
def test_it_ends_at_the_time_that_was_set_last(
    first: float | None, moves: dict[float, float | None], ends: float
) -> None:
    async def act() -> None:
        async with MovingDeadline(first) as deadline:
            for at, due in moves.items():
                asyncio.get_running_loop().call_at(at, deadline.move, due)
            await asyncio.sleep(FOREVER)

    assert ended_at(act) == ends


def test_moving_it_on_sets_no_timer() -> None:
    async def main() -> int:
        loop = running_loop()
        async with MovingDeadline(1.0) as deadline:
            for _ in range(100):
                deadline.move(loop.time() + 1.0)
            return len(loop._timers)

    assert run(main()) == 1


def test_what_is_done_in_time_or_fails_by_itself_is_left_alone() -> None:
    async def main() -> None:
        async with MovingDeadline(1.0) as deadline:
            deadline.move(2.0)
        with pytest.raises(ValueError, match="its own"):
            async with MovingDeadline(1.0):
                raise ValueError("its own")
        await asyncio.sleep(5.0)

    run(main())


def test_who_is_cancelled_by_somebody_else_at_the_same_time_is_cancelled() -> None:
    async def late() -> None:
        async with MovingDeadline(1.0):
            await asyncio.sleep(FOREVER)

    async def main() -> None:
        task = asyncio.create_task(late())
        await asyncio.sleep(0.5)
        asyncio.get_running_loop().call_at(1.0, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_a_time_that_has_ended_stays_so() -> None:
    async def late() -> None:
        async with MovingDeadline(1.0) as deadline:
            try:
                await asyncio.sleep(FOREVER)
            finally:
                deadline.move(9.0)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await late()
        await asyncio.sleep(20.0)

    run(main())


def test_on_uvloop_it_moves_and_ends_also_when_it_is_due_at_once() -> None:
    async def main() -> None:
        now = asyncio.get_running_loop().time
        async with MovingDeadline(now()) as deadline:  # uvloop has no timer for that
            deadline.move(now() + FOREVER)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with MovingDeadline(now()):
                await asyncio.sleep(FOREVER)

    uvloop.run(main())
