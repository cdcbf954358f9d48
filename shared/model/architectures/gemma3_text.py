"""Gemma 3, its text model: Gemma 2 with normalized heads and five layers with a window to one without; those with a
window rotate at a pace of their own."""

from dataclasses import replace

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import FULL, SLIDING, Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile


def describe(config: ConfigFile) -> ModelConfig:
    dense, bias = (
        Dense(config, activations={"gelu_pytorch_tanh": "gelu_tanh"}, tied=True),
        config.flag("attention_bias"),
    )
    full = LayerKind(
        head_norm="head",
        norms_after=True,
        activation=dense.activation,
        attention_scale=config.positive("query_pre_attn_scalar", 256.0) ** -0.5,
        score_cap=config.number("attn_logit_softcapping", 0.0),
        output_bias=bias,
    )
    rotation = replace(dense.rotations, theta=1_000_000.0).read_of(FULL)
    near = dense.turning(
        dense.windowed(full), dense.rotations.read_of(SLIDING, theta_key="rope_local_base_freq", is_scaled=False)
    )
    pattern = config.size("sliding_window_pattern", config.size("_sliding_window_pattern", 6))
    types = dense.layer_types(lambda layer: FULL if (layer + 1) % pattern == 0 else SLIDING)
    return dense.model(
        *(near if one == SLIDING else full for one in types),
        rotation=rotation,
        attention_bias=bias,
        norm_offset=1.0,
        embedding_scale=dense.hidden_size**0.5,
        logits_cap=config.number("final_logit_softcapping", 0.0),
    )


ARCHITECTURE = Architecture(
    "Gemma3ForCausalLM",
    "Gemma 3 (text: 270M, 1B)",
    describe,
    renamed={
        "self_attn.output_layernorm": "post_attention_layernorm",
        "post_attention_layernorm": "pre_feedforward_layernorm",
        "mlp.output_layernorm": "post_feedforward_layernorm",
    },
    example={
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 40,
        "sliding_window": 100,
        "layer_types": None,
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": 1_000_000.0},
            SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "sliding_window_pattern": 3,
        "tie_word_embeddings": True,
    },
)
