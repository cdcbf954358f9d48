import asyncio
import json
import stat
from pathlib import Path

import pytest

from livescale.services.supervisor.bus_server import ServerError
from tests.nats_server import NatsServer

pytestmark = pytest.mark.system


def program(path: Path) -> str:
    path.write_text("#!/bin/sh\nexit 3\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    async with NatsServer.start(tmp_path / "one") as server:
        port = int(server.url.rsplit(":", 1)[1])
        with pytest.raises(ServerError, match=f"port {port} is in use.*NATS_URL"):
            async with NatsServer.start(tmp_path / "two", port):
                pass


async def test_a_server_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_SERVER_BIN", program(tmp_path / "broken"))
    with pytest.raises(ServerError, match="ended with code 3"):
        async with NatsServer.start(tmp_path / "store"):
            pass


async def test_it_starts_with_jetstream_on_loopback_and_stops(tmp_path: Path) -> None:
    async with NatsServer.start(tmp_path) as server:
        assert server.url.startswith("nats://127.0.0.1:")
        host, port = server.url.removeprefix("nats://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        info = json.loads((await reader.readline()).removeprefix(b"INFO "))
        writer.close()
        await writer.wait_closed()
        assert info["jetstream"]
        assert info["server_name"] == server.name
    assert server.process.returncode == 0
