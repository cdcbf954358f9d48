"""How many streams are held, by an engine whose gaps are known."""

import asyncio
from collections.abc import Sequence

import pytest

from livescale.load.bench.requests.held import find_held
from livescale.shared.simulation import virtual_time


@pytest.mark.parametrize("holds", [2, 5, 24, 100])
def test_the_most_streams_are_found_before_tbt_doubles(holds: int) -> None:
    async def find() -> int:
        running: set[int] = set()

        async def gaps(number: int) -> Sequence[float]:
            running.add(number)
            await asyncio.sleep(0.02)
            return [0.001 if len(running) <= holds else 0.003] * 49

        async def cleared(number: int) -> Sequence[float]:
            if number == 0:
                running.clear()
            return await gaps(number)

        return await find_held(lambda text: None, cleared, 1.0)

    found = virtual_time.run(find(), limit_seconds=10_000)
    assert 0.85 * holds <= found <= holds


def test_streams_that_get_their_tokens_too_late_are_not_held() -> None:
    async def find() -> int:
        turns = asyncio.Semaphore(3)

        async def gaps(number: int) -> Sequence[float]:
            async with turns:
                await asyncio.sleep(0.4)
            return [0.001] * 49

        return await find_held(lambda text: None, gaps, 2.0)

    assert virtual_time.run(find(), limit_seconds=10_000) < 16
