"""`livescale models` and `livescale check`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from livescale.load.make_model import make_model
from livescale.services.cli.main import cli
from livescale.services.host.checkpoint import open_checkpoint
from livescale.shared.model.architectures import model_types
from tests.checkpoints import copy_checkpoint, tiny_checkpoint


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def test_every_architecture_is_listed() -> None:
    said = run("models").output
    assert all(name in said for name in model_types())
    rows = [json.loads(line) for line in run("models", "--json").output.splitlines()]
    assert [row["model_type"] for row in rows] == list(model_types())


@pytest.mark.parametrize("model_type", model_types())
def test_a_made_model_of_each_architecture_is_served(model_type: str, tmp_path: Path) -> None:
    directory = make_model(tmp_path / "made", model_type, "tiny", seed=3)
    result = run("check", str(directory), "--json")
    assert result.exit_code == 0, result.output
    needs = json.loads(result.output)
    checkpoint = open_checkpoint(directory, "bfloat16")
    assert needs["size_bytes"] == checkpoint.size_bytes == sum(needs["block_bytes"].values())
    config = checkpoint.config
    latent = config.latent
    kept = 2 * config.num_key_value_heads * config.head_dim
    if latent is not None:  # one for all heads, which is key and value
        kept = latent.kv_lora_rank + latent.qk_rope_head_dim
    assert needs["kv_bytes_per_token"] == config.num_hidden_layers * kept * 2
    assert 1 in needs["tensor_parallel_sizes"]


def test_what_it_needs_is_told() -> None:
    said = run("check", str(tiny_checkpoint("qwen2"))).output
    assert "Qwen2ForCausalLM will be served, up to 4096 tokens" in said
    assert "3 layers of" in said
    assert "tensor-parallel-size: 1, 2" in said
    assert "2 layers of 544.8 kB, 1 layer of 544 kB" in run("check", str(tiny_checkpoint("bert"))).output


def test_what_stands_in_the_way_is_told(tmp_path: Path) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": {"bits": 4}}))
    result = run("check", str(directory))
    assert result.exit_code == 1
    assert "quantization_config: quant_method is '', which is not served; supported are awq, gptq, fp8" in result.output
    (directory / "config.json").write_text(json.dumps(config | {"hidden_size": 224}))
    assert "config.json makes it" in run("check", str(directory)).output
