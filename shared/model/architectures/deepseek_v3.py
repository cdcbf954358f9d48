"""DeepSeek-V3: V2 whose experts weigh likelihoods of their own, and are chosen by these and a bias, in groups."""

from msgspec.structs import replace

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.declaration.architecture import Architecture
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.latent import describe_latent, grouped, read_routed

METHOD = "noaux_tc"


def describe(config: ConfigFile) -> ModelConfig:
    experts = replace(read_routed(config, "sigmoid"), normalized=config.flag("norm_topk_prob", True))
    if config.text("topk_method", METHOD) != METHOD:
        raise CheckpointError(f"topk_method is {config.text('topk_method')[:80]!r}, must be {METHOD!r}")
    config.whole("num_nextn_predict_layers", 0)  # they predict further tokens, and nothing here uses them
    experts = grouped(config, experts)
    return describe_latent(config, experts, interleaved=config.flag("rope_interleave", True))


ARCHITECTURE = Architecture(
    "DeepseekV3ForCausalLM",
    "DeepSeek-V3, R1",
    describe,
    unused=("model.layers.{next}.",),
    example={
        "num_key_value_heads": None,
        "head_dim": 16,
        "q_lora_rank": 96,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 128,
        "n_shared_experts": 1,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 0,
    },
)
