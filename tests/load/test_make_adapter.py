"""Made adapters are in peft's format."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from livescale.load.make_adapter import make_adapter
from livescale.shared.model.checkpoint import CheckpointError, load_model_config
from livescale.shared.model.declaration.adapter import ADAPTER_CONFIG, ADAPTER_FILE
from tests.checkpoints import pooling_checkpoint, tiny_checkpoint


def test_names_and_shapes_are_those_of_peft(tmp_path: Path) -> None:
    model = tiny_checkpoint("llama")
    made = make_adapter(tmp_path / "a", model, rank=4, matrices=("q_proj", "down_proj"))
    config, tensors = load_model_config(model), load_file(made / ADAPTER_FILE)
    assert len(tensors) == 4 * config.num_hidden_layers
    prefix = "base_model.model.model.layers.2."
    queries = config.num_attention_heads * config.head_dim
    assert tensors[f"{prefix}self_attn.q_proj.lora_A.weight"].shape == (4, config.hidden_size)
    assert tensors[f"{prefix}self_attn.q_proj.lora_B.weight"].shape == (queries, 4)
    assert tensors[f"{prefix}mlp.down_proj.lora_A.weight"].shape == (4, config.intermediate_size)
    said = json.loads((made / ADAPTER_CONFIG).read_text())
    assert said["target_modules"] == ["down_proj", "q_proj"]
    assert (said["r"], said["peft_type"]) == (4, "LORA")


def test_the_same_seed_makes_the_same_bytes(tmp_path: Path) -> None:
    model = tiny_checkpoint("llama")
    first, second, other = (make_adapter(tmp_path / f"{seed}{n}", model, seed=seed) for n, seed in enumerate((1, 1, 2)))
    files = [(made / ADAPTER_FILE).read_bytes() for made in (first, second, other)]
    assert files[0] == files[1] != files[2]


def test_a_model_that_makes_vectors_gets_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="make vectors"):
        make_adapter(tmp_path / "a", pooling_checkpoint("qwen2", tmp_path))
