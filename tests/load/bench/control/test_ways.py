"""Requests that fail in a bench of the control path end it with one error, which says which request it was."""

import pytest

from livescale.load.bench.control.rows import measure_costs
from livescale.load.bench.control.ways import fetch, find_capacity, open_loop
from livescale.load.bench.samples import BenchFailed
from livescale.load.client import open_client


async def test_a_request_without_an_answer_is_named() -> None:
    async with open_client("http://127.0.0.1:9", "m", 1.0) as client:
        with pytest.raises(BenchFailed, match="request 7: "):
            await fetch(client, 7)


async def fail(number: int, tokens: int = 1) -> None:
    raise BenchFailed(f"request {number}")


async def test_of_requests_at_once_the_first_failure_is_raised_alone() -> None:
    with pytest.raises(BenchFailed, match="request 3"):
        await find_capacity(fail, 3)
    with pytest.raises(BenchFailed, match="request 6"):
        await open_loop(fail, 3, rate=1e6)
    with pytest.raises(BenchFailed, match="request 0"):
        await measure_costs({}, fail, 3, lanes=2)
