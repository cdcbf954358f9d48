import asyncio
import json
import stat
import sys
from pathlib import Path

import pytest

from livescale.shared.bus.server import NatsServer, ServerError, find_server

pytestmark = pytest.mark.system


def program(path: Path) -> str:
    path.write_text("#!/bin/sh\nexit 3\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_the_named_binary_comes_first_and_must_exist(tmp_path: Path) -> None:
    named = program(tmp_path / "my-nats")
    assert find_server({"NATS_SERVER_BIN": named}) == named
    with pytest.raises(ServerError, match="NATS_SERVER_BIN=/nowhere"):
        find_server({"NATS_SERVER_BIN": "/nowhere"})


def test_then_the_wheels_then_the_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = tmp_path / "bin"
    environment.mkdir()
    monkeypatch.setattr(sys, "executable", str(environment / "python"))
    elsewhere = tmp_path / "usr"
    elsewhere.mkdir()
    on_path = program(elsewhere / "nats-server")
    assert find_server({"PATH": str(elsewhere)}) == on_path
    beside = program(environment / "nats-server")
    assert find_server({"PATH": str(elsewhere)}) == beside


def test_where_there_is_none_the_error_names_the_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ServerError, match=r"livescale\[embedded\].*NATS_SERVER_BIN.*NATS_URL"):
        find_server({"PATH": str(tmp_path)})


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
