"""The NATS server under the supervisor."""

import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from livescale.services.supervisor import bus_server, ports
from livescale.services.supervisor.bus_server import (
    ServerError,
    find_server,
    server_name,
    start_nats,
)
from livescale.services.supervisor.processes import Supervisor
from livescale.shared.bus.contract import Disconnected
from livescale.shared.bus.nats import NatsBus
from tests.nats_server import NatsServer
from tests.supervisor.children import Log, until


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


async def test_a_bus_can_be_opened_at_once_and_returns_after_the_server_died(tmp_path: Path) -> None:
    log = Log()
    async with Supervisor(log) as supervisor:
        url = (await start_nats(supervisor, tmp_path, "default"))["operator"]
        bus = await NatsBus.connect(url, "default", "test", timeout=60)
        try:
            server = supervisor.children["nats"]
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            await until(lambda: not bus.connected)
            await until(lambda: bus.connected and server.starts == 2)
            await bus.flush()
        finally:
            await bus.close()
    # The server is quiet, the supervisor is not.
    assert log.lines == [("nats", log.lines[0][1])]
    assert "killed by SIGKILL" in log.lines[0][1]
    with pytest.raises(Disconnected):
        await NatsBus.connect(url, "default", "test", timeout=0.2)


async def test_another_server_on_the_port_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with NatsServer.start(tmp_path / "other") as other:
        port = int(other.url.rsplit(":", 1)[1])
        assert await server_name(port) == other.name
        monkeypatch.setattr(bus_server, "free_port", lambda: port)
        async with Supervisor(Log()) as supervisor:
            with pytest.raises(ServerError, match=f"taken by another NATS server, {other.name}"):
                await start_nats(supervisor, tmp_path / "ours", "default")


async def test_without_a_free_port_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PORT_TRIES", 0)
    async with Supervisor(Log()) as supervisor:
        with pytest.raises(ServerError, match=r"of 0 ports that were tried 0 are free; set NATS_URL"):
            await start_nats(supervisor, tmp_path, "default")


async def test_without_the_program_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_SERVER_BIN", "/nowhere/nats-server")
    async with Supervisor(Log()) as supervisor:
        with pytest.raises(ServerError, match="/nowhere/nats-server is not a program"):
            await start_nats(supervisor, tmp_path, "default")
