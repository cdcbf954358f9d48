"""`livescale up`: what is refused before anything starts."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from services.cli.up import up


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "tiny"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return directory


def run(*arguments: str) -> Result:
    return CliRunner().invoke(up, arguments)


@pytest.mark.parametrize("text", ["tiny", "=dir", "tiny=", ""])
def test_a_model_that_is_not_name_and_directory_is_refused(text: str) -> None:
    result = run("--model", text)
    assert result.exit_code == 2
    assert "is not NAME=DIR" in result.output


def test_no_model_at_all_is_refused() -> None:
    result = run()
    assert result.exit_code == 2
    assert "give --model NAME=DIR" in result.output


def test_a_name_with_odd_letters_is_refused(checkpoint: Path) -> None:
    result = run("--model", f"ti ny={checkpoint}")
    assert result.exit_code == 2
    assert "'ti ny'" in result.output


def test_a_directory_that_is_not_there_is_refused_at_once() -> None:
    result = run("--model", "tiny=/nowhere/tiny")
    assert result.exit_code == 2
    assert "model 'tiny': there is no directory /nowhere/tiny" in result.output


def test_an_unknown_dtype_is_refused(checkpoint: Path) -> None:
    result = run("--model", f"tiny={checkpoint}", "--dtype", "float8")
    assert result.exit_code == 2
    assert "'float8' is not one of" in result.output


def test_a_port_in_use_is_refused(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = run("--model", f"tiny={checkpoint}", "--port", str(port))
    assert result.exit_code == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in result.output


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        ("- name: alice\n  kee: s3cret\n", "Object contains unknown field `kee`"),
        ("- {name: a, key: s3cret}\n- {name: a, key: other}\n", "two keys named 'a'"),
        ("][", "is not YAML"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_is_refused_before_anything_starts(
    checkpoint: Path, tmp_path: Path, content: str | None, said: str
) -> None:
    keys = tmp_path / "keys.yaml"
    if content is not None:
        keys.write_text(content)
        keys.chmod(0o600)
    result = run("--model", f"tiny={checkpoint}", "--port", "0", "--api-keys", str(keys))
    assert result.exit_code == 2
    [line] = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    assert said in line
    assert "s3cret" not in result.output


def test_models_of_a_file_have_settings_of_their_own(checkpoint: Path, tmp_path: Path) -> None:
    config = tmp_path / "up.yaml"
    config.write_text(
        f"workers: 3\nmodels:\n  - name: a\n    path: {checkpoint}\n    max-instances: 2\n"
        "    bounds: {prefill-hi: 0.6}\n"
    )
    printed = run("--config", str(config), "--print-config").output
    assert "max-instances: 2" in printed
    assert "prefill-hi: 0.6" in printed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: [{name: a, path: b, min-instance: 1}]", "'min-instance' in models[0]; did you mean 'min-instances'?"),
        ("models: [{name: a}]", "models[0]: path is missing"),
        ("models: [{name: a, path: b, bounds: {prefil-hi: 1}}]", "'prefil-hi' in models[0].bounds"),
        ("models: [{name: a, path: b, min-instances: -1}]", "models[0].min-instances: Expected `int` >= 0"),
    ],
)
def test_a_mistake_in_a_model_of_the_file_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    config = tmp_path / "up.yaml"
    config.write_text(text)
    result = run("--config", str(config))
    assert result.exit_code == 2
    assert said in result.output


def test_what_the_workers_would_refuse_is_refused_before_anything_starts(checkpoint: Path) -> None:
    result = run("--model", f"tiny={checkpoint}", "--max-num-seqs", "500")
    assert result.exit_code == 2
    assert "max-num-batched-tokens is 512" in result.output
    assert "so at least 628" in result.output


@pytest.mark.parametrize(
    ("flag", "value"), [("context-share", "1.5"), ("context-seconds", "-1"), ("tbt-ratio", "0.5"), ("block-size", "8")]
)
def test_bounds_of_the_workers_own_settings_hold_here_too(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, flag: str, value: str
) -> None:
    by_flag = run("--model", f"tiny={checkpoint}", f"--{flag}={value}")
    monkeypatch.setenv(f"LIVESCALE_{flag.replace('-', '_').upper()}", value)
    by_environment = run("--model", f"tiny={checkpoint}")
    assert by_flag.exit_code == by_environment.exit_code == 2
    assert f"Invalid value for '--{flag}'" in by_flag.output
    assert f"LIVESCALE_{flag.replace('-', '_').upper()}" in by_environment.output
