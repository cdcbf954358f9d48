"""DeepSeek-V2: a latent in place of keys and values; experts in groups or not, and an MLP that all rows use."""

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.declaration.architecture import Architecture
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.latent import describe_latent, grouped, read_routed

GREEDY, IN_GROUPS = "greedy", "group_limited_greedy"


def describe(config: ConfigFile) -> ModelConfig:
    experts = read_routed(config, "softmax")
    method = config.text("topk_method", GREEDY)
    if method not in (GREEDY, IN_GROUPS):
        raise CheckpointError(f"topk_method is {method[:80]!r}; supported are {GREEDY!r} and {IN_GROUPS!r}")
    if config.flag("norm_topk_prob"):
        raise CheckpointError("norm_topk_prob: transformers does not divide by the sum; set it to false")
    if method == IN_GROUPS:
        experts = grouped(config, experts)
    else:
        for key in ("n_group", "topk_group"):  # they say nothing then
            config.whole(key, 1)
    if config.flag("mlp_bias"):
        raise CheckpointError("mlp_bias is not served of this architecture; use a checkpoint without these biases")
    return describe_latent(config, experts, interleaved=True)


ARCHITECTURE = Architecture(
    "DeepseekV2ForCausalLM",
    "DeepSeek-V2, V2-Lite, Coder-V2",
    describe,
    example={
        "num_key_value_heads": None,
        "head_dim": 16,
        "q_lora_rank": None,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 128,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.0,
        "topk_method": GREEDY,
    },
)
