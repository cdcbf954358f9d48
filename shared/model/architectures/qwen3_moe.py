"""Qwen3-MoE: Qwen3 whose layers have experts, all of them or those that the file does not name as dense."""

from msgspec.structs import replace

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import DEFAULT_WINDOW, Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile
from livescale.shared.model.declaration.experts import read_experts


def describe(config: ConfigFile) -> ModelConfig:
    dense, bias = Dense(config), config.flag("attention_bias")
    config.whole("max_window_layers", 0)  # here all layers have the window, or none
    config.only(shared_expert_intermediate_size=0, qkv_bias=False, use_qk_norm=True)
    window = dense.window(DEFAULT_WINDOW) * config.flag("use_sliding_window")
    plain = LayerKind(head_norm="head", window=window, output_bias=bias)
    step, without = config.size("decoder_sparse_step", 1), config.wholes("mlp_only_layers")
    kinds = [replace(plain, experts=layer not in without and (layer + 1) % step == 0) for layer in range(dense.layers)]
    features = config.size("moe_intermediate_size", 768)
    experts = read_experts(config, 128, 8, features, normalized=config.flag("norm_topk_prob"))
    return dense.model(*kinds, attention_bias=bias, experts=experts if any(kind.experts for kind in kinds) else None)


ARCHITECTURE = Architecture(
    "Qwen3MoeForCausalLM",
    "Qwen3 30B-A3B, 235B-A22B, Qwen3-Coder",
    describe,
    example={"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128, "norm_topk_prob": True},
)
