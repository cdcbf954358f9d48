"""Phi-3: Llama with joined matrices, heads that may rotate in part, and a window where the file says one."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile
from livescale.shared.model.declaration.rotation import ORIGINAL


def describe(config: ConfigFile) -> ModelConfig:
    dense = Dense(config, partial=1.0, eps=1e-5)
    config.whole(ORIGINAL, 0)  # matters only where the rotation is scaled
    config.only(attention_bias=False, mlp_bias=False, lm_head_bias=False, full_attn_mod=1, interpolate_factor=1)
    return dense.model(LayerKind(window=dense.window()))


ARCHITECTURE = Architecture(
    "Phi3ForCausalLM",
    "Phi-3, Phi-3.5 (mini, medium), Phi-4, Phi-4-mini",
    describe,
    joined={
        "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    },
    example={"sliding_window": 100, "partial_rotary_factor": 0.75},
)
