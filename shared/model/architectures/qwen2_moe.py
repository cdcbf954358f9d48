"""Qwen2-MoE: Qwen2 whose layers have experts, and an MLP that all rows use by a weight of their own."""

from msgspec.structs import replace

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import FULL, SLIDING, Architecture, Dense
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.experts import read_experts


def describe(config: ConfigFile) -> ModelConfig:
    dense = Dense(config)
    config.only(use_sliding_window=False)  # no published model has it
    for key in ("sliding_window", "max_window_layers"):
        config.whole(key, 0)
    if SLIDING in dense.layer_types(lambda layer: FULL):
        raise CheckpointError(f"layer_types: {SLIDING} is not served of this architecture")
    step, without = config.size("decoder_sparse_step", 1), config.wholes("mlp_only_layers")
    kinds = [LayerKind(experts=layer not in without and (layer + 1) % step == 0) for layer in range(dense.layers)]
    features = config.size("moe_intermediate_size", 1_408)
    experts = read_experts(config, 60, 4, features, normalized=config.flag("norm_topk_prob"))
    shared = config.size("shared_expert_intermediate_size", 5_632)
    experts = replace(experts, shared_features=shared, shared_gate=True)
    return dense.model(
        *kinds,
        attention_bias=config.flag("qkv_bias", True),
        experts=experts if any(kind.experts for kind in kinds) else None,
    )


ARCHITECTURE = Architecture(
    "Qwen2MoeForCausalLM",
    "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B",
    describe,
    renamed={f"mlp.shared_experts.{one}_proj": f"mlp.shared_expert.{one}_proj" for one in ("gate", "up", "down")},
    example={
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 256,
    },
)
