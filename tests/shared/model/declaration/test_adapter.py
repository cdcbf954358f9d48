"""What adapter_config.json says, and what is refused by name."""

from typing import Any

import pytest

from livescale.load.make_adapter import PEFT
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.architectures import architecture_of
from livescale.shared.model.declaration.adapter import (
    DOWN,
    LARGEST_RANK,
    UP,
    AdapterConfig,
    adapted_matrices,
    read_adapter_config,
)
from livescale.shared.model.declaration.config_file import CheckpointError

SAID = {**PEFT, "r": 16, "lora_alpha": 32, "target_modules": ["q_proj"], "base_model_name_or_path": "org/name"}
MODEL = ModelConfig(
    family="llama",
    vocab_size=100,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
    max_position_embeddings=64,
)
LAYER = "base_model.model.model.layers.1."
QUERIES = {f"{LAYER}self_attn.q_proj{DOWN}": [3, 24], f"{LAYER}self_attn.q_proj{UP}": [24, 3]}


def read(**fields: Any) -> AdapterConfig:
    return read_adapter_config({**SAID, **fields})


def test_the_factor_is_alpha_by_rank_or_by_its_root() -> None:
    assert read() == AdapterConfig(16, 2.0)
    assert read(use_rslora=True) == AdapterConfig(16, 8.0)
    assert read(r=LARGEST_RANK).rank == LARGEST_RANK


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora"),
        ({"use_qalora": True}, "use_qalora"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"target_parameters": ["mlp.experts"]}, "target_parameters"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"r": LARGEST_RANK + 1}, "at most 256"),
        ({"r": 0}, "r is 0"),
        ({"lora_alpha": -1}, "lora_alpha"),
        ({"lora_alpha": "x"}, "lora_alpha"),
        ({"use_something": True}, "use_something"),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        read(**fields)


def test_matrices_are_found_by_their_tensors() -> None:
    [found] = adapted_matrices(MODEL, architecture_of(MODEL), QUERIES, 3)
    assert (found.name, found.rows, found.inputs) == ("model.layers.1.self_attn.q_proj", 24, 24)


@pytest.mark.parametrize(
    ("stored", "told"),
    [
        ({}, "no tensors"),
        ({f"{LAYER}self_attn.q_proj{DOWN}": [3, 24]}, "lora_B.weight is missing"),
        ({**QUERIES, f"{LAYER}self_attn.q_proj{DOWN}": [4, 24]}, r"\[4, 24\]"),
        ({**QUERIES, f"{LAYER}self_attn.q_proj{UP}": [48, 3]}, r"\[48, 3\].*trained for"),
        ({"base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight": [3, 24]}, "layer that this model"),
        ({"base_model.model.lm_head.lora_A.weight": [3, 24]}, "no matrix of a layer"),
        ({f"{LAYER}self_attn.q_proj.lora_magnitude_vector": [24]}, "DoRA"),
        ({f"{LAYER}mlp.experts.0.up_proj{DOWN}": [3, 24]}, "experts"),
        ({f"{LAYER}self_attn.q_proj.bias": [24]}, "no matrix"),
    ],
)
def test_tensors_that_do_not_fit_the_model_are_refused_by_name(stored: dict[str, list[int]], told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        adapted_matrices(MODEL, architecture_of(MODEL), stored, 3)
