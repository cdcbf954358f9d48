"""`livescale up`: what is refused before anything starts."""

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from livescale.services.cli.main import cli
from tests.checkpoints import copy_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return copy_checkpoint("qwen2", tmp_path)


def run(*arguments: str) -> Result:
    # Through the whole command line: click keeps the help option of the first context that a command is called in.
    return CliRunner().invoke(cli, ["up", *arguments])


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


def test_what_is_refused_is_json_too_where_logs_are(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    result = run("--model", f"tiny={checkpoint}", "--port", "0", "--log-format", "json")
    assert result.exit_code == 2
    event = json.loads(result.output)
    assert (event["event"], event["level"]) == ("up_failed", "error")
    assert "tokenizer.json is missing" in event["error"]


def change_config(checkpoint: Path, **changes: object) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_checkpoint_without_a_tokenizer_is_refused_before_anything_starts(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    result = run("--model", f"tiny={checkpoint}", "--port", "0")
    assert result.exit_code == 2
    assert f"model 'tiny': {checkpoint / 'tokenizer.json'} is missing" in result.output


def test_an_architecture_that_nothing_computes_is_refused_before_anything_starts(checkpoint: Path) -> None:
    change_config(checkpoint, model_type="mamba", architectures=["MambaForCausalLM"])
    result = run("--model", f"tiny={checkpoint}", "--port", "0")
    assert result.exit_code == 2
    assert "model_type 'mamba' is not supported" in result.output


def test_a_checkpoint_without_its_parameters_is_refused_before_anything_starts(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    result = run("--model", f"tiny={checkpoint}", "--port", "0")
    assert result.exit_code == 2
    assert "has neither model.safetensors nor model.safetensors.index.json" in result.output


def test_a_degree_that_does_not_divide_is_refused_with_those_that_do(checkpoint: Path) -> None:
    result = run("--model", f"tiny={checkpoint}", "--port", "0", "--workers", "3", "--tensor-parallel-size", "3")
    assert result.exit_code == 2
    assert "tensor_parallel_size is 3 and neither divides num_key_value_heads" in result.output
    assert "this model can have 1, 2" in result.output


def test_a_hub_id_that_cannot_be_fetched_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = run("--model", "tiny=nobody/no-such-model", "--port", "0")
    assert result.exit_code == 2
    assert "model 'tiny': nobody/no-such-model: no directory of that name here" in result.output


def test_a_request_longer_than_the_checkpoint_allows_is_refused(checkpoint: Path) -> None:
    result = run("--model", f"tiny={checkpoint}", "--port", "0", "--max-model-len", "1000000")
    assert result.exit_code == 2
    assert "max-model-len 1000000 is more than the checkpoint's own" in result.output


def test_an_unknown_dtype_is_refused(checkpoint: Path) -> None:
    result = run("--model", f"tiny={checkpoint}", "--dtype", "float8")
    assert result.exit_code == 2
    assert "'float8' is not one of" in result.output


def test_a_block_size_between_multiples_is_refused_by_its_name(checkpoint: Path) -> None:
    result = run("--model", f"tiny={checkpoint}", "--port", "0", "--block-size", "17")
    assert result.exit_code == 2
    assert "Error: block-size: Expected `int` that's a multiple of 16" in result.output


def test_a_place_for_the_note_that_cannot_be_made_is_refused_with_what_to_do(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVESCALE_STATE_DIR", str(checkpoint / "config.json" / "state"))
    result = run("--model", f"tiny={checkpoint}", "--port", "0")
    assert result.exit_code == 1
    assert "name another directory by LIVESCALE_STATE_DIR" in result.output


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
