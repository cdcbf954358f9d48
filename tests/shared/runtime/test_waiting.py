"""Waiting for blocks that become ready one by one, and for coroutines that succeed or fail as one."""

import asyncio

import pytest

from livescale.shared.runtime.waiting import BlocksLost, ReadyBlocks, together


async def test_a_block_that_is_there_is_not_waited_for() -> None:
    async with asyncio.timeout(1):
        await ReadyBlocks(range(3)).wait_ready(2)


async def test_a_task_that_waits_goes_on_when_its_own_block_comes() -> None:
    ready, came = ReadyBlocks(), []

    async def wait(index: int) -> None:
        await ready.wait_ready(index)
        came.append(index)

    waiting = [asyncio.create_task(wait(index)) for index in (0, 1)]
    await asyncio.sleep(0)
    ready.add(1)
    await waiting[1]
    assert came == [1]
    ready.add(0)
    await waiting[0]
    assert came == [1, 0]


async def test_blocks_that_will_never_come_are_an_error_and_those_that_came_are_not() -> None:
    ready = ReadyBlocks([0])
    waiting = asyncio.create_task(ready.wait_ready(1))
    await asyncio.sleep(0)
    ready.lose("cannot read model.safetensors")
    with pytest.raises(BlocksLost, match=r"block 1: cannot read model\.safetensors"):
        await waiting
    await ready.wait_ready(0)


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
