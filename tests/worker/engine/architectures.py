"""A small model of each architecture, odd in shape, whose every field differs from its default and whose window is
short."""

from collections.abc import Callable
from typing import Any

import transformers

from livescale.shared.model.architectures import find_architecture, model_types
from tests.worker.requests import CONTEXT

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "rope_theta": 5e3, "factor": 8.0, "original_max_position_embeddings": 275}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.3, 1.5, 1.8, 2.1],
    "long_factor": [1.2, 2.5, 4.0, 9.0, 17.0, 31.5],
    "original_max_position_embeddings": 275,
}
SHAPE: dict[str, Any] = {
    "vocab_size": 643,
    "hidden_size": 96,
    "intermediate_size": 132,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
OF_DECODERS = ("num_key_value_heads", "rms_norm_eps")
OF_IMAGES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")
# Sizes of which each fills panels, by the names that architectures have for them.
IN_PANELS = {
    "head_dim": 32,
    "v_head_dim": 32,
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim"), 192),
    **dict.fromkeys(("moe_intermediate_size", "num_experts", "num_local_experts", "n_routed_experts"), 64),
}
LEARNED = ("gpt2", "opt")  # which have names of their own for some of the sizes
WINDOW = 150
FIELDS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True, "head_dim": 20, "tie_word_embeddings": True},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    "mistral": {"sliding_window": WINDOW, "head_dim": 24},
    "qwen3": {"head_dim": 24, "attention_bias": True, "tie_word_embeddings": True},
    "phi3": {
        "sliding_window": WINDOW,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
    },
    "olmo2": {"attention_bias": True},
    "olmo3": {
        "sliding_window": WINDOW,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            "full_attention": YARN,
        },
    },
    "granite": {
        "attention_bias": True,
        "mlp_bias": True,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.4,
        "embedding_multiplier": 1.5,
        "logits_scaling": 0.7,
    },
    "smollm3": {"no_rope_layer_interval": 2, "attention_bias": True, "mlp_bias": True},
    "glm4": {"head_dim": 16, "attention_bias": True},
    "gemma2": {"head_dim": 24, "query_pre_attn_scalar": 40, "sliding_window": WINDOW, "attn_logit_softcapping": 3.0},
    "exaone4": {
        "head_dim": 24,
        "sliding_window": WINDOW,
        "sliding_window_pattern": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e3},
    },
    "cohere2": {
        "attention_bias": True,
        "layer_norm_eps": 1e-3,
        "logit_scale": 0.7,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "tie_word_embeddings": True,
    },
    "cohere": {"attention_bias": True, "layer_norm_eps": 1e-3, "logit_scale": 0.7, "tie_word_embeddings": True},
    "starcoder2": {"norm_epsilon": 1e-3, "sliding_window": WINDOW, "hidden_act": "gelu"},
    "seed_oss": {
        "head_dim": 24,
        "attention_out_bias": True,
        "mlp_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e3},
    },
    "ernie4_5": {
        "head_dim": 20,
        "use_bias": True,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e3},
    },
    "mixtral": {"sliding_window": WINDOW, "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 72},
    "qwen3_moe": {
        "head_dim": 24,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "num_experts": 10,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
        "mlp_only_layers": [2],
    },
    "qwen2_moe": {
        "num_experts": 10,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 56,
        "norm_topk_prob": True,
        "mlp_only_layers": [2],
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e3},
    },
    "gpt_oss": {
        "head_dim": 24,
        "sliding_window": WINDOW,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "intermediate_size": 64,
        "swiglu_alpha": 1.3,
        "swiglu_limit": 1.0,
        "rope_parameters": YARN | {"truncate": False},
    },
    "deepseek_v2": {
        "num_key_value_heads": 6,
        "attention_bias": True,
        "q_lora_rank": None,
        "kv_lora_rank": 40,
        "qk_nope_head_dim": 20,
        "qk_rope_head_dim": 12,
        "v_head_dim": 28,
        "moe_intermediate_size": 48,
        "n_routed_experts": 12,
        "num_experts_per_tok": 3,
        "n_shared_experts": 2,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.7,
        "first_k_dense_replace": 2,
        "rope_parameters": YARN,
    },
    "deepseek_v3": {
        "num_key_value_heads": 6,
        "attention_bias": True,
        "q_lora_rank": 44,
        "kv_lora_rank": 56,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
        "moe_intermediate_size": 40,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.9,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 0,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 5e3,
            "factor": 8.0,
            "original_max_position_embeddings": 275,
            "mscale": 0.9,
            "mscale_all_dim": 0.6,
        },
    },
    "glm4_moe": {
        "head_dim": 16,
        "attention_bias": True,
        "use_qk_norm": True,
        "moe_intermediate_size": 48,
        "n_routed_experts": 12,
        "num_experts_per_tok": 3,
        "n_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.7,
        "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 0,
    },
    "olmoe": {"attention_bias": True, "num_experts": 9, "num_experts_per_tok": 4, "intermediate_size": 40},
    "gemma3_text": {
        "head_dim": 24,
        "query_pre_attn_scalar": 40,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 7e3},
            "full_attention": {"rope_type": "linear", "rope_theta": 9e4, "factor": 4.0},
        },
    },
    "gpt2": {
        "n_inner": 132,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-3,
        "scale_attn_by_inverse_layer_idx": True,
    },
    "opt": {"ffn_dim": 132, "activation_function": "relu"},
    "bert": {"layer_norm_eps": 1e-5, "type_vocab_size": 2, "max_position_embeddings": 512, "hidden_act": "gelu"},
    "roberta": {"layer_norm_eps": 1e-3, "type_vocab_size": 1, "max_position_embeddings": 515, "hidden_act": "gelu_new"},
    "vit": {"image_size": 52, "patch_size": 5, "layer_norm_eps": 1e-3, "hidden_act": "gelu_new", "qkv_bias": False},
    "xlm-roberta": {"layer_norm_eps": 1e-5, "type_vocab_size": 1, "max_position_embeddings": 514, "pad_token_id": 1},
}


def fields_of(model_type: str) -> dict[str, Any]:
    """The keys of the small model's config.json."""
    is_plain = generates(model_type) and model_type not in LEARNED
    shape = SHAPE if is_plain else {key: value for key, value in SHAPE.items() if key not in OF_DECODERS}
    if takes_images(model_type):
        shape = {key: SHAPE[key] for key in OF_IMAGES}
    if model_type in LEARNED:
        shape = {key: value for key, value in shape.items() if key != "intermediate_size"}
    return {**shape, **FIELDS[model_type]}


def other_fields() -> dict[str, dict[str, Any]]:
    """The same, with their types, of a model whose heads rotate by one of two sets of factors, and of one of each
    architecture that can be cut for four ranks."""
    original = {"original_max_position_embeddings": LONGROPE["original_max_position_embeddings"]}
    long = {**fields_of("phi3"), "model_type": "phi3", "rope_parameters": LONGROPE, **original}
    generating = [model_type for model_type in model_types() if generates(model_type)]
    return {"phi3-longrope": long} | {f"{one}-four": {"model_type": one, **_of_eight_heads(one)} for one in generating}


def _with_heads(model_type: str, count: int) -> dict[str, Any]:
    """The small model's keys with so many heads. Each has keys of its own where those of the small model do."""
    fields = {**fields_of(model_type), "num_attention_heads": count}
    if fields.get("num_key_value_heads") == SHAPE["num_attention_heads"]:
        fields["num_key_value_heads"] = count
    return fields


def _of_eight_heads(model_type: str) -> dict[str, Any]:
    fields = _with_heads(model_type, 8)
    if model_type == "phi3":  # heads of 12 numbers
        fields["rope_parameters"] = {**fields["rope_parameters"], "partial_rotary_factor": 0.5}
    return fields


def panel_fields(model_type: str) -> dict[str, Any]:
    """The keys of a model that generates, with its type, whose matrices fill panels, the router's too."""
    fields = {**_with_heads(model_type, 4), "hidden_size": 128, "num_hidden_layers": 4}
    sizes = IN_PANELS | ({"intermediate_size": 64} if model_type in ("olmoe", "gpt_oss") else {})
    return {"model_type": model_type, **fields, **{key: sizes[key] for key in sizes if key in fields}}


def architecture_names() -> list[str]:
    """The small models that generate, by the names under which `models.checkpointed` has them."""
    return [f"{model_type}-small" for model_type in model_types() if generates(model_type)]


def generates(model_type: str) -> bool:
    architecture = find_architecture(model_type)
    assert architecture is not None
    return architecture.generates


def takes_images(model_type: str) -> bool:
    architecture = find_architecture(model_type)
    assert architecture is not None
    return architecture.takes_images


# Of texts.
ENCODERS = [model_type for model_type in model_types() if not (generates(model_type) or takes_images(model_type))]


def config_of(**fields: Any) -> Callable[[], "transformers.PreTrainedConfig"]:
    """The configuration of a `model_type`; made when it is asked for, as its module takes long to import."""
    return lambda: transformers.AutoConfig.for_model(**fields)
