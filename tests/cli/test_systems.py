"""Systems to compare with: every one that is shipped, how they are shown, and what goes before them."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from livescale.services.cli.main import cli
from livescale.services.cli.options import PASSED_ON, UpOptions, gather
from livescale.services.cli.systems import find_system, read_systems
from livescale.services.cli.up import ready_line
from livescale.services.planner.settings import PlannerSettings
from livescale.services.registry.settings import RegistrySettings
from livescale.services.router.settings import RouterSettings
from livescale.services.supervisor.checks import check_live
from livescale.services.supervisor.commands import control_flags, worker_flags
from livescale.services.supervisor.settings import StackSettings
from livescale.services.worker.settings import WorkerSettings

NAMES = list(read_systems())


def run(*words: str, env: Mapping[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, words, env=dict(env or {}))


def print_config(*words: str, env: Mapping[str, str] | None = None) -> dict[str, object]:
    """What counts in the end, as `livescale up` prints it."""
    result = run("up", *words, "--print-config", env=env)
    assert result.exit_code == 0, result.output
    return dict(yaml.safe_load(result.output))


@pytest.mark.parametrize("name", NAMES)
def test_the_services_take_the_settings_of_every_system(name: str) -> None:
    values = find_system(name).values()
    stack = gather(UpOptions(**values), StackSettings, PASSED_ON)
    check_live(stack)
    RegistrySettings(**control_flags("registry", stack, None))  # type: ignore[arg-type]
    PlannerSettings(**control_flags("planner", stack, None))  # type: ignore[arg-type]
    RouterSettings(**control_flags("router", stack, None))  # type: ignore[arg-type]
    WorkerSettings(**worker_flags(stack))  # type: ignore[arg-type]
    if find_system(name).simulated:
        return
    shown = print_config("--system", name)
    assert {key: shown[key] for key in find_system(name).settings} == find_system(name).settings


def test_no_two_systems_are_the_same() -> None:
    settings = [json.dumps(find_system(name).values(), sort_keys=True) for name in NAMES]
    assert len(set(settings)) == len(NAMES)


def test_all_are_listed_with_what_they_are_and_set() -> None:
    result = run("systems")
    assert result.exit_code == 0
    assert all(name in result.output for name in NAMES)
    assert "--host-cache" in result.output


def test_one_is_printed_as_a_file_for_up_and_as_an_environment(tmp_path: Path) -> None:
    (tmp_path / "up.yaml").write_text(run("systems", "allcache").output)
    ours, theirs = print_config("--config", str(tmp_path / "up.yaml")), print_config("--system", "allcache")
    assert {**ours, "system": "allcache"} == theirs
    lines = run("systems", "allcache", "--env").output.splitlines()
    assert {**print_config(env=dict(line.split("=") for line in lines)), "system": "allcache"} == theirs


@pytest.mark.parametrize("words", [("systems", "allcash"), ("up", "--system", "allcash")])
def test_an_unknown_name_is_refused_with_the_nearest(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert "unknown system 'allcash'; did you mean 'allcache'?" in result.output


@pytest.mark.parametrize("words", [("up", "--system", "ideal", "--print-config"), ("systems", "ideal", "--env")])
def test_a_system_that_loads_in_no_time_is_refused_where_links_are_real(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert "ideal loads in no time, which real links cannot: try `livescale bench systems`" in result.output


def test_flags_the_environment_and_the_file_go_before_a_system(tmp_path: Path) -> None:
    (tmp_path / "up.yaml").write_text("host-cache-ttl: 7\nworkers: 5\n")
    file = ("--config", str(tmp_path / "up.yaml"))
    env = {"LIVESCALE_HOST_CACHE": "pool"}
    for words in (("--system", "serverlessllm", *file), (*file, "--system", "serverlessllm")):
        shown = print_config(*words, "--plan-policy", "fanout", env=env)
        assert (shown["plan-policy"], shown["host-cache"], shown["host-cache-ttl"]) == ("fanout", "pool", 7.0)
        assert (shown["live"], shown["workers"], shown["system"]) == ("off", 5, "serverlessllm")


def test_a_system_may_be_named_by_the_environment_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "up.yaml").write_text("system: allcache\nlive: zigzag\n")
    shown = print_config("--config", str(tmp_path / "up.yaml"))
    assert (shown["host-cache"], shown["live"]) == ("all", "zigzag")
    shown = print_config(env={"LIVESCALE_SYSTEM": "faasnet"})
    assert (shown["plan-policy"], shown["live"]) == ("tree", "off")


def test_the_line_that_says_ready_names_the_system() -> None:
    line = json.loads(ready_line(StackSettings(system="allcache"), {"url": "http://here"}))
    assert line == {"ready": True, "url": "http://here", "system": "allcache"}
    assert "system" not in json.loads(ready_line(StackSettings(), {}))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("{plan-polisy: local}", "one: unknown key 'plan-polisy'; did you mean 'plan-policy'?"),
        ("{host-cache: some}", "one: host-cache"),
        ("{system: other}", "system is no part of a system"),
        ("{fixed-share: 2}", "one: fixed-share"),
    ],
)
def test_a_setting_that_does_not_exist_or_fit_is_refused(tmp_path: Path, settings: str, why: str) -> None:
    path = tmp_path / "systems.yaml"
    path.write_text(f"one: {{about: x, figure: y, settings: {settings}}}\n")
    with pytest.raises(ValueError, match=r"systems\.yaml: one: ") as refused:
        read_systems(path)
    assert why in str(refused.value)
