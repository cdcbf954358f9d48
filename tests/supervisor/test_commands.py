"""The command lines of a system are such as the command line understands."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from livescale.services.cli.main import cli
from livescale.services.supervisor.bus_server import write_config
from livescale.services.supervisor.checks import make_spec, resolve_form
from livescale.services.supervisor.commands import (
    ENGINE_IMPORTS,
    SERVICE_IMPORTS,
    WORKER_IMPORTS,
    bind_system_ports,
    gateway_commands,
    nats_command,
    service_commands,
)
from livescale.services.supervisor.credentials import ROLES, authorization, fresh_passwords
from livescale.services.supervisor.model_settings import ModelSettings
from livescale.services.supervisor.processes import ProcessCommand
from livescale.services.supervisor.settings import StackSettings
from livescale.shared.runtime.yaml_file import kebab

SETTINGS = StackSettings(workers=2, port=0, api_key=("sesame",), transport="socket", link_rate=1e8, arena_bytes=1 << 26)
URLS = {role: f"nats://{role}:swordfish@127.0.0.1:1" for role in ROLES}
[GATEWAY] = gateway_commands(SETTINGS, URLS, [4711], Path("/run"))
COMMANDS = {each.name: each for each in [*service_commands(SETTINGS, URLS), GATEWAY]}


def resolve(command: ProcessCommand) -> str:
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


def test_standby_routers_are_started_on_demand() -> None:
    names = [each.name for each in service_commands(StackSettings(routers=3), URLS)]
    assert [name for name in names if name.startswith("router")] == ["router-0", "router-1", "router-2"]


def test_system_ports_are_free_ones_or_the_first_and_those_after_it() -> None:
    def ports(system_bind: str) -> list[str]:
        return [each.argv[-1] for each in bind_system_ports(list(COMMANDS.values()), system_bind)]

    assert set(ports(SETTINGS.system_bind)) == {"--system-bind=127.0.0.1:0"}
    assert ports("[::1]:9100")[:2] == ["--system-bind=[::1]:9100", "--system-bind=[::1]:9101"]
    [_, second, *_] = bind_system_ports(list(COMMANDS.values()), "0.0.0.0:9100")
    assert "system-bind: 0.0.0.0:9101\n" in resolve(second)


def test_each_gateway_has_a_name_a_port_and_a_ready_file_of_its_own() -> None:
    gateways = gateway_commands(SETTINGS, URLS, [4711, 4712], Path("/run"))
    assert [each.name for each in gateways] == ["gateway-0", "gateway-1"]
    second = resolve(gateways[1])
    assert "id: gateway-1\n" in second
    assert "port: 4712" in second
    assert "ready-file: /run/gateway-1.json" in second


def test_what_models_have_by_default_is_the_same_for_those_that_are_registered_later() -> None:
    stack = StackSettings(workers=3, min_instances=0, max_model_len=512, downscale_delay_s=2.0)
    settings = resolve_form(stack, "float32", "panels")
    registry = resolve(next(each for each in service_commands(settings, URLS) if each.name == "registry-0"))
    later = make_spec(ModelSettings(name="later", path="later"), settings)
    for name in (
        *("dtype", "layout", "min_instances", "max_instances", "max_model_len", "tensor_parallel_size"),
        "downscale_delay_s",
    ):
        assert f"{kebab(name)}: {getattr(later, name)}\n" in registry
    assert "max-instances: 3\n" in registry


def test_the_planner_alone_is_told_how_to_plan() -> None:
    commands = {each.name: each for each in service_commands(StackSettings(plan_policy="binomial"), URLS)}
    assert "plan-policy: binomial" in resolve(commands["planner-0"])
    assert [name for name, each in commands.items() if "plan-policy" in " ".join(each.argv)] == ["planner-0"]


def test_the_planner_alone_is_told_who_goes_live() -> None:
    for every_hop in (False, True):
        settings = StackSettings(live="zigzag", live_every_hop=every_hop, live_when="needed", ttft_slo=0.5)
        commands = {each.name: each for each in service_commands(settings, URLS)}
        told = resolve(commands["planner-0"])
        assert "live: zigzag" in told
        assert f"live-every-hop: {str(every_hop).lower()}" in told
        assert "live-when: needed" in told
        assert "ttft-slo: 0.5" in told
        assert [name for name, each in commands.items() if "--live=zigzag" in each.argv] == ["planner-0"]


def test_routers_and_planner_are_told_what_is_in_time_and_whether_roles_are_given_for_it() -> None:
    settings = StackSettings(disaggregation="auto", ttft_slo=0.5, tbt_slo=0.03)
    commands = {each.name: each for each in service_commands(settings, URLS)}
    assert "disaggregation: auto\nttft-slo: 0.5\ntbt-slo: 0.03\n" in resolve(commands["router-0"])
    assert "ttft-slo: 0.5\ntbt-slo: 0.03\ndisaggregation: auto\n" in resolve(commands["planner-0"])


def test_workers_alone_are_told_of_a_modelled_engine() -> None:
    settings = StackSettings(workers=1, engine="modelled", engine_profile="llama2-7b-h800", engine_speed=4.0)
    commands = {each.name: each for each in service_commands(settings, URLS)}
    worker = resolve(commands["worker-0"])
    assert "engine: modelled\nengine-profile: llama2-7b-h800\nengine-speed: 4.0\n" in worker
    assert [name for name, each in commands.items() if "modelled" in " ".join(each.argv)] == ["worker-0"]


def test_processes_of_a_kind_are_forked_from_one_and_only_workers_that_compute_import_torch() -> None:
    for engine, imports in (("torch", ENGINE_IMPORTS), ("modelled", WORKER_IMPORTS)):
        settings = StackSettings(workers=2, engine=engine)  # type: ignore[arg-type]
        commands = [*service_commands(settings, URLS), *gateway_commands(settings, URLS, [1], Path("/run"))]
        assert {each.imports for each in commands if each.name.startswith("worker")} == {imports}
        assert {each.imports for each in commands if not each.name.startswith("worker")} == {SERVICE_IMPORTS}
    assert hasattr(importlib.import_module(ENGINE_IMPORTS[-1]), "torch")
    code = "import importlib, sys; [*map(importlib.import_module, sys.argv[1:])]; print('torch' in sys.modules)"
    words = (sys.executable, "-c", code, *WORKER_IMPORTS, *SERVICE_IMPORTS)
    assert subprocess.check_output(words, text=True) == "False\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_service_understands_its_command_line(name: str) -> None:
    config = resolve(COMMANDS[name])
    assert f"id: {name}\n" in config
    assert f"nats-url: nats://{name[:-2]}:***@127.0.0.1:1\n" in config


def test_settings_reach_the_services_they_are_for() -> None:
    worker = resolve(COMMANDS["worker-1"])
    assert "transport: socket" in worker
    assert "link-rate: 100000000.0" in worker
    assert "arena-bytes: 67108864" in worker
    assert "transport: socket" in resolve(COMMANDS["host-0"])
    assert "ready-file: /run/gateway-0.json" in resolve(COMMANDS["gateway-0"])


def test_what_an_operator_tells_all_workers_reaches_each() -> None:
    told: dict[str, Any] = {
        "max_num_seqs": 9,
        "max_num_waiting": 3,
        "max_num_batched_tokens": 256,
        "tbt_ratio": 3.0,
        "block_size": 32,
        "context_share": 0.25,
        "context_seconds": 60.0,
        "threads": 2,
    }
    for name, command in _workers(StackSettings(workers=2, worker_options=told, host_kv_bytes=5)).items():
        config = resolve(command)
        assert [field for field, value in told.items() if f"{kebab(field)}: {value}\n" not in config] == [], name


def test_options_that_are_left_out_are_left_to_the_workers_and_their_environment() -> None:
    [worker] = _workers(StackSettings(workers=1)).values()
    assert not [word for word in worker.argv if word.startswith("--context")]
    assert "context-share: 0.5\n" in resolve(worker)
    assert "context-share: 0.25\n" in resolve(replace(worker, env={**worker.env, "LIVESCALE_CONTEXT_SHARE": "0.25"}))


def _workers(settings: StackSettings) -> dict[str, ProcessCommand]:
    return {each.name: each for each in service_commands(settings, URLS) if each.name.startswith("worker")}


def test_no_secret_is_on_a_command_line_and_each_process_has_its_own_alone() -> None:
    for name, command in COMMANDS.items():
        assert not any("sesame" in word or "swordfish" in word for word in command.argv)
        assert command.env["LIVESCALE_NATS_URL"] == URLS[name[:-2]]
        assert command.env["LIVESCALE_API_KEY"] == ("sesame" if name == "gateway-0" else "")


def test_files_for_an_external_server_reach_every_process_and_none_that_of_our_own() -> None:
    external = StackSettings(nats_url="tls://far:4222", nats_creds="/etc/creds", nats_ca="/etc/ca")
    [registry, *_] = service_commands(external, dict.fromkeys(ROLES, external.nats_url))
    assert registry.env["LIVESCALE_NATS_CREDS"] == registry.env["NATS_CREDS"] == "/etc/creds"
    assert "nats-ca: /etc/ca" in resolve(registry)
    assert GATEWAY.env["NATS_CREDS"] == GATEWAY.env["LIVESCALE_NATS_CREDS"] == ""


def test_workers_yield_to_the_control_plane_and_compute_on_one_thread() -> None:
    worker = COMMANDS["worker-0"]
    assert worker.nice > COMMANDS["gateway-0"].nice == 0
    assert worker.env["OMP_NUM_THREADS"] == "1"
    assert not worker.essential
    assert COMMANDS["registry-0"].essential


def test_the_nats_server_listens_on_loopback_only_and_its_passwords_are_for_its_owner(tmp_path: Path) -> None:
    config = write_config(tmp_path / "nats", "ours", 4223, authorization(fresh_passwords(), "default"))
    assert json.loads(config.read_text())["listen"] == "127.0.0.1:4223"
    assert config.stat().st_mode & 0o777 == 0o600
    assert nats_command("/bin/nats-server", config, {}, 2).argv == ("/bin/nats-server", "--config", str(config))


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (7, "1"), (8, "2"), (64, "16")])
def test_the_nats_server_has_a_quarter_of_the_cores(cores: int, threads: str) -> None:
    assert nats_command("nats-server", Path("config"), {}, cores).env == {"GOMAXPROCS": threads}


def test_who_names_the_threads_of_the_nats_server_gets_them() -> None:
    assert nats_command("nats-server", Path("config"), {"GOMAXPROCS": "3"}, 64).env == {"GOMAXPROCS": "3"}
