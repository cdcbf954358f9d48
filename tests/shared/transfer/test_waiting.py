"""Waiting for blocks that become ready one by one."""

import asyncio

import pytest

from livescale.shared.transfer.waiting import BlocksLost, ReadyBlocks


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
