"""Gemma 2: norms before and after, with weights counted from 1; bent scores and logits; every other layer has a
window."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import FULL, SLIDING, Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile

SCORES, LOGITS = "attn_logit_softcapping", "final_logit_softcapping"


def describe(config: ConfigFile) -> ModelConfig:
    dense, bias = (
        Dense(config, activations={"gelu_pytorch_tanh": "gelu_tanh"}, tied=True),
        config.flag("attention_bias"),
    )
    config.whole("sliding_window_size", 0)  # what sliding_window was called at first; files have both
    full = LayerKind(
        norms_after=True,
        activation=dense.activation,
        attention_scale=config.positive("query_pre_attn_scalar", 256.0) ** -0.5,
        score_cap=config.number(SCORES, config.unless_null(SCORES, 50.0)),
        output_bias=bias,
    )
    near, types = dense.windowed(full), dense.layer_types(lambda layer: FULL if layer % 2 else SLIDING)
    return dense.model(
        *(near if one == SLIDING else full for one in types),
        attention_bias=bias,
        norm_offset=1.0,
        embedding_scale=dense.hidden_size**0.5,
        logits_cap=config.number(LOGITS, config.unless_null(LOGITS, 30.0)),
    )


ARCHITECTURE = Architecture(
    "Gemma2ForCausalLM",
    "Gemma 2",
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
        "attn_logit_softcapping": 20.0,
        "final_logit_softcapping": 10.0,
        "sliding_window": 100,
        "tie_word_embeddings": True,
    },
)
