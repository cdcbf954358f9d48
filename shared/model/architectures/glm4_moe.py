"""GLM-4.5: heads rotate in their first half; DeepSeek-V3's experts in all layers but the first ones."""

from msgspec.structs import replace

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile
from livescale.shared.model.declaration.latent import grouped, read_routed


def describe(config: ConfigFile) -> ModelConfig:
    dense = Dense(config, partial=0.5, eps=1e-5)
    config.whole("num_nextn_predict_layers", 0)  # they predict further tokens, and nothing here uses them
    experts = replace(read_routed(config, "sigmoid"), normalized=config.flag("norm_topk_prob", True))
    plain = LayerKind(head_norm="head" if config.flag("use_qk_norm") else "none")
    first = config.whole("first_k_dense_replace", 1)
    kinds = [replace(plain, experts=layer >= first) for layer in range(dense.layers)]
    return dense.model(
        *kinds,
        attention_bias=config.flag("attention_bias"),
        experts=grouped(config, experts) if any(kind.experts for kind in kinds) else None,
    )


ARCHITECTURE = Architecture(
    "Glm4MoeForCausalLM",
    "GLM-4.5, 4.5-Air, 4.6, 4.7",
    describe,
    unused=("model.layers.{next}.",),
    example={
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "use_qk_norm": True,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 128,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,
    },
)
