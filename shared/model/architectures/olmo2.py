"""OLMo 2: attention and MLP normalize their output, not their input; all heads of a row are normalized at once."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.architecture import Architecture, Dense
from livescale.shared.model.config_file import ConfigFile


def describe(config: ConfigFile) -> ModelConfig:
    bias = config.flag("attention_bias")
    kind = LayerKind(head_norm="row", norms_before=False, norms_after=True, output_bias=bias)
    return Dense(config, eps=1e-5).model(kind, attention_bias=bias)


ARCHITECTURE = Architecture(
    "Olmo2ForCausalLM",
    "OLMo 2",
    describe,
    renamed={
        "self_attn.output_layernorm": "post_attention_layernorm",
        "mlp.output_layernorm": "post_feedforward_layernorm",
    },
)
