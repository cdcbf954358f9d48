"""How commands find the bus, and what they print where no service answers."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from livescale.services.cli import connection
from livescale.services.cli.main import cli
from livescale.services.supervisor.run_files import announce, pointer_path
from tests.cli.answers import Answers, run
from tests.nats_server import NatsServer


async def test_a_refusal_is_one_line(server: NatsServer, answers: Answers) -> None:
    result = await run(server, "scale", "huge", "--instances", "2")
    assert result.exit_code == 1
    assert result.output == "Error: no model 'huge' is registered\n"


async def test_a_service_that_does_not_run_is_named(server: NatsServer) -> None:
    result = await run(server, "status")
    assert result.exit_code == 1
    assert "svc.registry.snapshot" in result.output
    assert "start that service" in result.output


async def test_the_system_of_this_machine_is_found_without_flags(server: NatsServer, answers: Answers) -> None:
    with announce(pointer_path(), url="", nats_url=server.url, namespace="default"):
        result = await asyncio.to_thread(CliRunner().invoke, cli, ["status", "--json"])
    assert json.loads(result.output)["processes"][0]["id"] == "worker-0"


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait long for a server that is not there."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.2)


@pytest.mark.usefixtures("no_patience")
def test_without_a_server_it_is_told_where_one_was_looked_for(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["status"])
    assert result.exit_code == 1
    assert f"{tmp_path / 'run.json'} names no running `livescale up`, and NATS_URL is not set" in result.output


@pytest.mark.usefixtures("no_patience")
def test_without_a_server_the_remedy_is_told() -> None:
    result = CliRunner().invoke(cli, ["status", "--nats-url", "nats://127.0.0.1:9"])
    assert result.exit_code == 1
    assert "start `livescale up`, or name a server with --nats-url" in result.output
