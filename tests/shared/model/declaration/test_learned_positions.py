"""Decoders with learned positions and LayerNorms, from their `config.json`."""

from typing import Any

import pytest

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.architectures import find_architecture
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile

GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 100,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 50,
}
OPT: dict[str, Any] = {
    "model_type": "opt",
    "vocab_size": 100,
    "hidden_size": 32,
    "ffn_dim": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 50,
}


def described(values: dict[str, Any]) -> ModelConfig:
    architecture = find_architecture(values["model_type"])
    assert architecture is not None
    return architecture.describe(ConfigFile(values))


def test_gpt2_has_four_times_as_many_features_unless_its_file_says_otherwise() -> None:
    model = described(GPT2 | {"n_inner": None})
    assert (model.intermediate_size, described(GPT2 | {"n_inner": 48}).intermediate_size) == (128, 48)
    kind = model.kind(0)
    assert (kind.activation, kind.gated, kind.norms_before, kind.norms_sum) == ("gelu_tanh", False, True, False)
    assert (model.layer_norms, model.learned_positions, model.position_offset) == (True, True, 0)
    assert model.tie_word_embeddings


@pytest.mark.parametrize(
    ("fields", "scales"),
    [
        ({}, [8**-0.5] * 3),
        ({"scale_attn_weights": False}, [1.0] * 3),
        ({"scale_attn_by_inverse_layer_idx": True}, [8**-0.5, 8**-0.5 / 2, 8**-0.5 / 3]),
        ({"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}, [1.0, 1 / 2, 1 / 3]),
    ],
)
def test_gpt2_may_scale_scores_by_layer(fields: dict[str, Any], scales: list[float]) -> None:
    model = described(GPT2 | fields)
    assert [model.kind(layer).attention_scale for layer in range(3)] == scales


def test_positions_of_opt_begin_at_row_2() -> None:
    model = described(OPT)
    assert (model.position_offset, model.max_position_embeddings) == (2, 50)
    kind = model.kind(0)
    assert (kind.activation, kind.attention_scale, kind.output_bias, kind.mlp_bias) == ("relu", 0.0, True, True)
    bare = described(OPT | {"enable_bias": False, "activation_function": "gelu"})
    assert (bare.attention_bias, bare.kind(0).mlp_bias, bare.kind(0).activation) == (False, False, "gelu")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (GPT2 | {"n_head": 5}, "n_embd 32 must be an even multiple of n_head, 5; repair"),
        (GPT2 | {"n_layer": 10_001}, "n_layer is 10001, must be at most 10000"),
        (GPT2 | {"activation_function": "swish"}, "activation_function 'swish' is not served; supported are gelu_new"),
        (GPT2 | {"add_cross_attention": True}, "add_cross_attention is true, which is not served; use a decoder"),
        (OPT | {"num_attention_heads": 32}, "hidden_size 32 must be an even multiple of num_attention_heads, 32"),
        (OPT | {"word_embed_proj_dim": 16}, "word_embed_proj_dim is 16 and hidden_size 32: .* use another size"),
        (OPT | {"do_layer_norm_before": False}, "do_layer_norm_before is false .* use another size"),
        (OPT | {"_remove_final_layer_norm": True}, "_remove_final_layer_norm is true: .* use another size"),
        (OPT | {"layer_norm_elementwise_affine": False}, "norms without weights are not served; use another size"),
    ],
)
def test_what_is_not_served_is_refused_by_name(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        described(values)
