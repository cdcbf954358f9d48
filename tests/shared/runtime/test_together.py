"""Several coroutines that succeed or fail as one."""

import asyncio

import pytest

from livescale.shared.runtime.together import together


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
