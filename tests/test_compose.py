"""The Compose files, read without an engine: commands that are understood, namespaces that are shared, nobody at large.

What they do in an engine is tested in tests/compose.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from livescale.services.cli.main import cli
from livescale.services.cli.options import fields_of
from livescale.services.cli.run import SUMMARIES
from livescale.services.gateway.settings import GatewaySettings
from livescale.services.host.settings import HostSettings
from livescale.services.monitor.settings import MonitorSettings
from livescale.services.planner.settings import PlannerSettings
from livescale.services.registry.settings import RegistrySettings
from livescale.services.router.settings import RouterSettings
from livescale.services.supervisor.credentials import OPERATOR, ROLES
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.runtime.settings import ProcessSettings

ROOT = Path(__file__).parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
FAR: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.two-machines.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {
    name: service
    for name, service in (FAR["services"] | SERVICES).items()
    if service.get("command", [""])[:1] == ["run"]
}
SETTINGS: dict[str, type[ProcessSettings]] = {
    "gateway": GatewaySettings,
    "router": RouterSettings,
    "registry": RegistrySettings,
    "planner": PlannerSettings,
    "monitor": MonitorSettings,
    "host": HostSettings,
    "worker": WorkerSettings,
}
GIVEN = {"LIVESCALE_API_KEY": "sesame"}


def substituted(value: str) -> str:
    """`${NAME:-default}` and `${NAME:?why}` as Compose reads them with nothing but the key set."""
    value = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: GIVEN[found[1]], value)
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def environment(service: dict[str, Any]) -> dict[str, str]:
    """With nothing set: what has no value is taken over from whoever calls Compose."""
    told = service.get("environment", {})
    return {name: substituted(value) for name, value in told.items() if value is not None}


def kind(name: str) -> str:
    command: list[str] = OURS[name]["command"]
    return command[1]


def test_every_service_runs_with_two_gateways_a_standby_router_and_two_workers() -> None:
    kinds = [kind(name) for name in OURS if name in SERVICES]
    assert set(kinds) == set(SUMMARIES)
    assert {each: kinds.count(each) for each in kinds if kinds.count(each) > 1} == {"gateway": 2, "router": 2}
    assert SERVICES["worker"]["scale"] == 2


@pytest.mark.parametrize("name", OURS)
def test_every_command_is_understood_and_finds_the_bus(name: str) -> None:
    result = CliRunner().invoke(cli, [*OURS[name]["command"], "--print-config"], env=environment(OURS[name]))
    assert result.exit_code == 0, result.output
    assert "nats-url: nats://nats:4222" in result.output
    assert "nats-login: /run/secrets/login" in result.output


@pytest.mark.parametrize("name", OURS)
def test_each_process_gets_variables_that_it_knows_and_the_login_of_its_role(name: str) -> None:
    known = {f"LIVESCALE_{field.name.upper()}" for field in fields_of(SETTINGS[kind(name)])}
    told = {each for each in OURS[name]["environment"] if each.startswith("LIVESCALE_")}
    assert told <= known
    [login] = OURS[name]["secrets"]
    assert login == {"source": f"login-{kind(name)}", "target": "login"}


def test_no_setting_of_models_memory_or_logs_is_out_of_reach() -> None:
    worker, host, planner = (set(SERVICES[name]["environment"]) for name in ("worker", "host", "planner"))
    assert {"LIVESCALE_ARENA_BYTES", "LIVESCALE_DEVICE", "LIVESCALE_ENGINE", "LIVESCALE_TOPOLOGY"} <= worker
    assert {"LIVESCALE_CACHE_BYTES", "LIVESCALE_PACKED_DIR", "LIVESCALE_LOG_FORMAT", "HF_HOME"} <= host
    assert {"LIVESCALE_LIVE", "LIVESCALE_TOPOLOGY", "OTEL_EXPORTER_OTLP_ENDPOINT"} <= planner


def test_there_is_a_login_for_each_role() -> None:
    roles = {name.removeprefix("login-") for name in COMPOSE["secrets"] if name.startswith("login-")}
    assert roles == {*ROLES, OPERATOR}


@pytest.mark.parametrize(("machine", "members"), [("machine", ("host", "worker")), ("far-machine", ("far-host",))])
def test_members_live_in_the_namespaces_of_their_machine(machine: str, members: tuple[str, ...]) -> None:
    everything = FAR["services"] | SERVICES
    assert everything[machine]["ipc"] == "shareable"
    assert everything[machine]["init"]
    for member in members:
        wanted = f"service:{machine}"
        assert {everything[member][name] for name in ("network_mode", "pid", "ipc")} == {wanted}
        assert everything[member]["environment"]["LIVESCALE_HOST_NAME"] == everything[machine]["hostname"]


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "prometheus"])
def test_everybody_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert ("cap_add" in service, service.get("user", "")) == ((True, "0:0") if name == "credentials" else (False, ""))


def test_no_address_is_fixed_and_docker_compose_1_29_reads_the_files() -> None:
    for file in (COMPOSE, FAR):
        assert "name" not in file
        assert all(not (network or {}).get("ipam") for network in file["networks"].values())
        assert "start_interval" not in str(file)


def test_processes_have_the_time_that_they_take_to_stop() -> None:
    assert {service["stop_grace_period"] for service in OURS.values()} == {"20s"}


def test_nothing_is_reached_from_outside_but_gateways_and_prometheus_and_only_from_this_machine() -> None:
    ports = {
        name: [substituted(port) for port in service["ports"]]
        for name, service in SERVICES.items()
        if "ports" in service
    }
    assert ports == {
        "gateway": ["127.0.0.1:8000:8000"],
        "gateway-2": ["127.0.0.1:8001:8000"],
        "prometheus": ["127.0.0.1:9090:9090"],
    }


def test_what_is_referred_to_exists() -> None:
    dockerfile = ROOT / SERVICES["nats"]["build"]["dockerfile"]
    copied = [line.split()[1:-1] for line in dockerfile.read_text().splitlines() if re.match("COPY [^-]", line)]
    assert all((ROOT / each).exists() for line in copied for each in line)
    mounted = [volume.split(":")[0] for volume in SERVICES["prometheus"]["volumes"] if volume.startswith("./")]
    assert all((ROOT / each).is_file() for each in mounted)


def test_the_commands_of_tools_are_understood() -> None:
    for name in ("burst", "credentials", "targets"):
        command = [*SERVICES[name]["command"], "--help"]
        assert CliRunner().invoke(cli, command).exit_code == 0, name
