"""docker-compose.yml: every command is one that the command line understands."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from livescale.services.cli.main import cli
from livescale.services.cli.run import SUMMARIES
from livescale.services.worker.settings import WorkerSettings

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OURS = {name: service for name, service in COMPOSE["services"].items() if service["image"] == "livescale"}
SERVICES = {name: service for name, service in OURS.items() if service["command"][0] == "run"}


def substituted(value: str) -> str:
    """`${NAME:-default}` as Compose reads it with nothing set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def environment(service: dict[str, Any]) -> dict[str, str]:
    """The environment with nothing set: variables without a value are taken from the caller of Compose."""
    return {name: substituted(value) for name, value in service["environment"].items() if value is not None}


def test_every_service_runs_and_there_are_two_workers() -> None:
    kinds = [service["command"][1] for service in SERVICES.values()]
    assert set(kinds) == set(SUMMARIES)
    assert kinds.count("worker") == 2


def test_what_workers_take_over_from_the_environment_they_know() -> None:
    taken_over = {name for name, value in SERVICES["worker-0"]["environment"].items() if value is None}
    assert taken_over <= {f"LIVESCALE_{field.upper()}" for field in WorkerSettings.__struct_fields__}
    assert "LIVESCALE_CONTEXT_SHARE" in taken_over


@pytest.mark.parametrize("name", SERVICES)
def test_every_command_is_understood_and_finds_the_bus(name: str) -> None:
    service = SERVICES[name]
    result = CliRunner().invoke(cli, [*service["command"], "--print-config"], env=environment(service))
    assert result.exit_code == 0, result.output
    assert "nats-url: nats://nats:4222" in result.output


def test_the_load_of_the_demo_is_understood() -> None:
    burst = OURS["burst"]
    result = CliRunner().invoke(cli, [*burst["command"], "--print-config"], env=environment(burst))
    assert result.exit_code == 0, result.output


def test_ids_and_addresses_are_unique_and_are_those_of_the_network() -> None:
    links = [service for service in SERVICES.values() if "--bind" in service["command"]]
    addresses = [service["command"][service["command"].index("--bind") + 1] for service in links]
    assert addresses == [service["networks"]["control"]["ipv4_address"] for service in links]
    assert len(set(addresses)) == len(addresses) == 3


def test_what_is_referred_to_exists() -> None:
    for service in OURS.values():
        dockerfile = ROOT / service["build"]["dockerfile"]
        copied = [line.split()[1:-1] for line in dockerfile.read_text().splitlines() if line.startswith("COPY")]
        assert all((ROOT / each).exists() for line in copied for each in line)
    assert {"nats", "nats-box"} <= set(COMPOSE["services"])


def test_nothing_but_the_gateway_is_reached_from_outside_and_only_from_this_machine() -> None:
    ports = {name: service["ports"] for name, service in COMPOSE["services"].items() if "ports" in service}
    assert ports == {"gateway": ["127.0.0.1:8000:8000"]}
