"""A gateway under hostile token frames, before and while it serves: its streams stay whole."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.subjects import TOKENS
from tests.checkpoints import tiny_checkpoint
from tests.fuzz.effort import examples
from tests.fuzz.hostile import Shot, fire, shots
from tests.gateway.conftest import eventually, serve_gateway


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@examples(3)
@given(st.lists(shots([TOKENS], ["gateway-0"]), min_size=30, max_size=60))
def test_whatever_frames_come_a_gateway_serves_on(fired: list[Shot]) -> None:
    async def main() -> None:
        async with serve_gateway(tiny_checkpoint("qwen2")) as served:
            for shot in fired:
                fire(served.broker, shot)
            going = served.cluster.hang_before(1)
            asking = asyncio.create_task(
                served.post("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 3})
            )
            await eventually(lambda: served.cluster.hanging)
            for shot in fired:
                fire(served.broker, shot)
            going.set_result(None)
            status, body = await asyncio.wait_for(asking, 60)
            assert (status, body["usage"]["completion_tokens"]) == (200, 3)

    asyncio.run(main())
