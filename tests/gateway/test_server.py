"""The server's beginning and end: its port, and the requests that run when it is told to stop."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from livescale.services.gateway.server import PortInUse
from tests.gateway.conftest import Site, eventually, open_site, port_of

ASK = {"model": "tiny", "prompt": "abc", "max_tokens": 2}


async def test_running_requests_end_before_the_gateway_does(site: Site) -> None:
    going = site.cluster.hang_before(1)
    stream = await site.client.completions.create(model="tiny", prompt="abc", max_tokens=3, stream=True)
    await anext(aiter(stream))
    site.serving.cancel()
    await eventually(lambda: not listens(port_of(site)))
    going.set_result(None)
    assert [chunk.choices[0].finish_reason async for chunk in stream] == [None, "length"]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_what_takes_longer_than_the_grace_is_cancelled(checkpoint: Path) -> None:
    async with open_site(checkpoint, shutdown_grace_s=0) as site:
        never = asyncio.get_running_loop().create_future()
        site.cluster.before = lambda request, position: never
        asking = asyncio.create_task(site.post("/v1/completions", ASK))
        await eventually(lambda: len(site.cluster.submitted) == 1)
        site.serving.cancel()
        await asyncio.wait([asking, site.serving])
        assert asking.exception() is not None
        await eventually(lambda: len(site.cluster.cancelled) == 1)


async def test_a_port_in_use_is_an_error_that_says_so(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"127.0.0.1:{port}: .*in use.*choose another --port"):
            await refused_start(checkpoint, port)


async def refused_start(checkpoint: Path, port: int) -> Any:
    async with open_site(checkpoint, port=port) as site:
        return await site.serving
