"""The server's beginning and end: its port, and the requests that run when it is told to stop."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from livescale.services.gateway.server import PortInUse
from tests.gateway.conftest import ServedGateway, eventually, port_of, serve_gateway

ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 2}


async def test_running_requests_end_before_the_gateway_does(served: ServedGateway) -> None:
    going = served.cluster.hang_before(1)
    stream = await served.client.completions.create(model="tiny", prompt="abc", max_tokens=3, stream=True)
    await anext(aiter(stream))
    served.serving.cancel()
    await eventually(lambda: not listens(port_of(served)))
    going.set_result(None)
    assert [chunk.choices[0].finish_reason async for chunk in stream] == [None, "length"]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_what_takes_longer_than_the_grace_is_cancelled(checkpoint: Path) -> None:
    async with serve_gateway(checkpoint, shutdown_grace_s=0) as served:
        never = asyncio.get_running_loop().create_future()
        served.cluster.before = lambda request, position: never
        asking = asyncio.create_task(served.post("/v1/completions", ASK))
        await eventually(lambda: len(served.cluster.submitted) == 1)
        served.serving.cancel()
        await asyncio.wait([asking, served.serving])
        assert asking.exception() is not None
        await eventually(lambda: len(served.cluster.cancelled) == 1)


async def test_a_port_in_use_is_an_error_that_says_so(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"127.0.0.1:{port}: .*in use.*choose another --port"):
            await refused_start(checkpoint, port)


async def refused_start(checkpoint: Path, port: int) -> Any:
    async with serve_gateway(checkpoint, port=port) as served:
        return await served.serving
