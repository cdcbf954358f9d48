import os

import pytest

from livescale.load.bench.control.bare_stream import bare_stream
from livescale.load.bench.control.rows import (
    measure_costs,
)
from livescale.load.bench.control.ways import fetch
from livescale.load.client import LoadClient, open_session
from livescale.load.stats import Tally
from livescale.shared.runtime.clock import SystemClock


async def test_a_bare_stream_answers_as_a_gateway_and_its_cpu_time_is_counted() -> None:
    with bare_stream(0.001) as (url, pid):
        async with open_session(url, "", 10.0) as session:
            client = LoadClient(session, "bench", SystemClock(), Tally())
            await fetch(client, 0)

            async def ask(number: int, tokens: int) -> None:
                await fetch(client, number, tokens)

            costs = await measure_costs({"bare": pid}, ask, 16, 4)
    assert 0 < costs["bare"].token < costs["bare"].request < 0.1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
