"""`livescale credentials`: a server with its configuration lets in who has a login, and nobody else."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.services.cli.main import cli
from livescale.services.supervisor.bus_server import find_server
from livescale.services.supervisor.credentials import OPERATOR, ROLES
from livescale.services.supervisor.credentials_command import CONFIG, LISTEN, MONITORING
from livescale.services.supervisor.ports import free_port
from livescale.shared.bus.contract import BusError, Disconnected
from livescale.shared.bus.identity import NatsFiles, with_login
from livescale.shared.bus.nats import NatsBus


def made(directory: Path, *flags: str) -> dict[str, str]:
    result = CliRunner().invoke(cli, ["credentials", str(directory), *flags])
    assert result.exit_code == 0, result.output
    return {role: (directory / role).read_text() for role in (*ROLES, OPERATOR)}


def test_logins_stay_until_they_are_renewed(tmp_path: Path) -> None:
    directory = tmp_path / "secrets"
    first = made(directory)
    assert len(set(first.values())) == len(first)
    (directory / "worker").unlink()
    second = made(directory)
    assert [role for role in first if first[role] != second[role]] == ["worker"]
    third = made(directory, "--renew")
    assert all(second[role] != third[role] for role in second)
    config = json.loads((directory / CONFIG).read_text())
    assert {f"{user['user']}:{user['password']}\n" for user in config["authorization"]["users"]} == set(third.values())


def test_only_the_owner_looks_into_the_directory_and_containers_read_the_files(tmp_path: Path) -> None:
    directory = tmp_path / "secrets"
    directory.mkdir(mode=0o777)
    made(directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o444}


def test_a_file_that_is_no_login_is_refused(tmp_path: Path) -> None:
    (tmp_path / "worker").write_text("planner:x")
    result = CliRunner().invoke(cli, ["credentials", str(tmp_path)])
    assert result.exit_code == 1
    assert "holds no worker:PASSWORD; remove it, or give --renew" in result.output


@pytest.mark.parametrize(
    ("login", "url", "said"),
    [
        ("worker", "nats://h:1", "holds no USER:PASSWORD"),
        ("worker:x", "nats://a:b@h:1", "give one of them"),
        (None, "nats://h:1", "No such file"),
    ],
)
def test_a_login_that_cannot_be_used_is_refused(login: str | None, url: str, said: str, tmp_path: Path) -> None:
    if login is not None:
        (tmp_path / "login").write_text(login)
    with pytest.raises(BusError, match=said):
        with_login(url, str(tmp_path / "login"))


def test_a_login_becomes_part_of_the_url(tmp_path: Path) -> None:
    (tmp_path / "login").write_text("worker:a/b:c\n")
    assert with_login("nats://h:1", str(tmp_path / "login")) == "nats://worker:a%2Fb%3Ac@h:1"
    assert with_login("nats://h:1", "") == "nats://h:1"


@pytest.mark.system
async def test_the_server_lets_in_whoever_has_a_login(tmp_path: Path) -> None:
    made(tmp_path, "--store-dir", str(tmp_path / "store"))
    port, path = free_port(), tmp_path / CONFIG
    path.chmod(0o644)
    path.write_text(path.read_text().replace(LISTEN, f"127.0.0.1:{port}").replace(MONITORING, "127.0.0.1:-1"))
    url = f"nats://127.0.0.1:{port}"
    server = await asyncio.create_subprocess_exec(find_server(os.environ), "--config", str(path))
    try:
        for role in (*ROLES, OPERATOR):
            bus = await NatsBus.connect(url, "default", role, files=NatsFiles(login=str(tmp_path / role)), timeout=10.0)
            await bus.close()
        with pytest.raises(Disconnected):
            await NatsBus.connect(url, "default", "nobody", timeout=1.0)
    finally:
        server.terminate()
        await server.wait()
