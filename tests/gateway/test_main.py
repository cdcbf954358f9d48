"""The gateway as a process, before anything else of the system is there."""

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import msgspec
import pytest

from tests.gateway.conftest import eventually
from tests.nats_server import NatsServer

pytestmark = pytest.mark.system

COMMAND = (sys.executable, "-m", "livescale.services.cli.main", "run", "gateway", "--log-format", "json")


@asynccontextmanager
async def gateway(nats_url: str, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(
        *COMMAND, "--nats-url", nats_url, *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


def working_beside(gateway: int) -> set[str]:
    """The modules that processes of this gateway run."""
    started = Path(f"/proc/{gateway}/task/{gateway}/children").read_text().split()
    commands = list[list[str]]()
    for pid in started:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            commands.append(Path(f"/proc/{pid}/cmdline").read_text().split("\0"))
    return {command[2].rpartition(".")[2] for command in commands if len(command) > 2}


async def test_it_serves_says_what_is_missing_and_stops_when_asked(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    async with NatsServer.start(tmp_path) as server:
        options = ("--port", "0", "--ready-file", str(ready))
        async with gateway(server.url, *options) as child, aiohttp.ClientSession() as http:
            await eventually(ready.exists)
            url = msgspec.json.decode(ready.read_bytes())["url"]
            async with http.get(f"{url}/live") as answer:
                assert answer.status == 200
            async with http.get(f"{url}/ready") as answer:
                assert answer.status == 503
                assert (await answer.json())["reason"] == "the registry does not answer"
            async with http.get(f"{url}/v1/models") as answer:
                assert (answer.status, answer.headers["retry-after"]) == (503, "1")
                assert (await answer.json())["error"]["code"] == "overloaded"
            # They are started before any client needs them.
            await eventually(lambda: working_beside(child.pid) == {"template_process", "grammar_process"})
            child.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                output, _ = await child.communicate()
    assert (child.returncode, output) == (0, b"")


async def test_a_port_in_use_ends_it_with_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with NatsServer.start(tmp_path) as server, gateway(server.url, "--port", port) as child:
            async with asyncio.timeout(60):
                _, log = await child.communicate()
    assert child.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in log.decode()
