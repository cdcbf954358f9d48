"""The command lines of a system are such as the command line understands."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from services.cli.main import cli
from services.supervisor.commands import gateway_command, nats_command, service_commands
from services.supervisor.processes import Command
from services.supervisor.settings import StackSettings

SETTINGS = StackSettings(workers=2, port=0, api_key=("sesame",), transport="socket", link_rate=1e8, arena_bytes=1 << 26)
GATEWAY = gateway_command(SETTINGS, "nats://127.0.0.1:1", Path("/run/gateway.json"))
COMMANDS = {each.name: each for each in [*service_commands(SETTINGS, "nats://127.0.0.1:1"), GATEWAY]}


def resolve(command: Command) -> str:
    """The configuration that the command's process would have."""
    arguments = command.argv[command.argv.index("run") :]
    result = CliRunner().invoke(cli, [*arguments, "--print-config"], env=dict(command.env))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_system_has_one_of_each_and_as_many_workers_as_asked_for() -> None:
    assert list(COMMANDS) == [
        "registry-0",
        "router-0",
        "planner-0",
        "monitor-0",
        "worker-0",
        "worker-1",
        "host-0",
        "gateway-0",
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_service_understands_its_command_line(name: str) -> None:
    config = resolve(COMMANDS[name])
    assert f"id: {name}\n" in config
    assert "nats-url: nats://127.0.0.1:1\n" in config


def test_settings_reach_the_services_they_are_for() -> None:
    worker = resolve(COMMANDS["worker-1"])
    assert "transport: socket" in worker
    assert "link-rate: 100000000.0" in worker
    assert "arena-bytes: 67108864" in worker
    assert "transport: socket" in resolve(COMMANDS["host-0"])
    assert "ready-file: /run/gateway.json" in resolve(COMMANDS["gateway-0"])


def test_the_key_is_not_on_a_command_line() -> None:
    assert not any("sesame" in word for command in COMMANDS.values() for word in command.argv)
    assert COMMANDS["gateway-0"].env["LIVESCALE_API_KEY"] == "sesame"


def test_workers_yield_to_the_control_plane_and_compute_on_one_thread() -> None:
    worker = COMMANDS["worker-0"]
    assert worker.nice > COMMANDS["gateway-0"].nice == 0
    assert worker.env["OMP_NUM_THREADS"] == "1"
    assert not worker.essential
    assert COMMANDS["registry-0"].essential


def test_the_nats_server_listens_on_loopback_only() -> None:
    command = nats_command("/bin/nats-server", "ours", 4223, Path("/run/nats"))
    assert command.argv[:5] == ("/bin/nats-server", "--addr", "127.0.0.1", "--port", "4223")
