"""GLM-4: norms before and after attention and MLP, neighbours rotate, in the first half of a head."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.architecture import Architecture, Dense
from livescale.shared.model.config_file import ConfigFile


def describe(config: ConfigFile) -> ModelConfig:
    dense = Dense(config, partial=0.5, eps=1.5625e-7)
    return dense.model(LayerKind(norms_after=True), attention_bias=config.flag("attention_bias"), interleaved=True)


ARCHITECTURE = Architecture(
    "Glm4ForCausalLM",
    "GLM-4-0414",
    describe,
    renamed={
        "self_attn.output_layernorm": "post_self_attn_layernorm",
        "mlp.output_layernorm": "post_mlp_layernorm",
    },
    joined={"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")},
    example={"attention_bias": True, "partial_rotary_factor": 0.5},
)
