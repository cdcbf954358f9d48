"""Models with latent attention: what their configurations say, and what is refused by name."""

from math import log
from typing import Any

import pytest

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.architectures import find_architecture
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.model.declaration.adapter import refuse_model
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.tensors import Cut
from livescale.shared.model.sharding import find_shard_slice, possible_shards

# As in the file of DeepSeek-V3, but for sizes.
V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 640,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 163_840,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 64,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 3,
    "n_group": 4,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "aux_loss_alpha": 0.001,
    "seq_aux": True,
    "ep_size": 1,
    "num_nextn_predict_layers": 1,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 4_096,
    },
    "attention_bias": False,
    "tie_word_embeddings": False,
}
V2 = {key: value for key, value in V3.items() if key != "num_nextn_predict_layers"} | {
    "model_type": "deepseek_v2",
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "q_lora_rank": None,
}


def describe(values: dict[str, Any], **more: Any) -> ModelConfig:
    architecture, config = find_architecture(values["model_type"]), ConfigFile({**values, **more})
    assert architecture is not None
    made = architecture.quantized(architecture.describe(config), config)
    config.refuse_unread()
    return made


def test_the_keys_of_published_files_are_all_known() -> None:
    v3, v2 = describe(V3), describe(V2, n_group=1, topk_group=1)
    assert v3.latent is not None
    assert v2.latent is not None
    assert v3.experts is not None
    assert v2.experts is not None
    assert (v3.latent.q_lora_rank, v2.latent.q_lora_rank) == (96, 0)
    assert (v3.experts.groups, v3.experts.chosen_groups, v2.experts.groups) == (4, 2, 1)
    assert [v3.kind(layer).experts for layer in range(4)] == [False, False, False, True]
    assert (v3.head_dim, v3.num_key_value_heads, v3.kv_parts) == (80, 1, 1)


def test_scores_are_as_much_louder_as_yarn_says() -> None:
    """Over the whole length by the square of the factor of `mscale_all_dim`, and not where nothing is stretched."""
    stretched, plain = describe(V3), describe(V3, rope_scaling=None)
    louder = 0.1 * log(40) + 1
    assert stretched.kind(0).attention_scale == pytest.approx(48**-0.5 * louder**2)
    assert plain.kind(0).attention_scale == pytest.approx(48**-0.5)
    assert stretched.latent is not None
    assert stretched.latent.rope_factor == 1.0
    unequal = describe(V3, rope_scaling=V3["rope_scaling"] | {"mscale": 0.5})
    assert unequal.latent is not None
    assert unequal.latent.rope_factor == pytest.approx(((0.05 * log(40) + 1) / louder) ** 2)


def test_only_the_numbers_that_rotate_are_reordered() -> None:
    architecture = find_architecture("deepseek_v3")
    assert architecture is not None
    sources = architecture.sources(describe(V3))
    names = {name.split(".")[-2] for name, source in sources.items() if source.order}
    assert names == {"q_b_proj", "kv_a_proj_with_mqa"}
    order = sources["model.layers.0.self_attn.kv_a_proj_with_mqa.weight"].order
    assert order[:64] == tuple(range(64))
    assert order[64:] == (*range(64, 80, 2), *range(65, 80, 2))
    assert not any(source.order for source in architecture.sources(describe(V3, rope_interleave=False)).values())


def test_layers_that_predict_further_tokens_are_passed_over() -> None:
    architecture = find_architecture("deepseek_v3")
    assert architecture is not None
    assert architecture.unneeded(describe(V3)) == ("model.layers.4.",)


def test_what_experts_are_chosen_by_stays_in_float32() -> None:
    for layout in block_layouts(describe(V3), "bfloat16"):
        wide = [tensor for tensor in layout.tensors if tensor.dtype == "float32"]
        assert [one.name for one in wide] == (
            ["model.layers.3.mlp.gate.e_score_correction_bias"] if layout.name == "layer-3" else []
        )
        ends = [tensor.offset for tensor in layout.tensors[1:]] + [layout.size_bytes]
        assert all(end - one.offset >= 4 * 16 for one, end in zip(layout.tensors, ends, strict=True) if one in wide)


def test_ranks_divide_heads_and_each_has_the_latent() -> None:
    made = describe(V3)
    assert possible_shards(made) == [1, 2, 4]
    cuts: tuple[Cut, ...] = ("queries", "expanded", "query_columns", "shared_features")
    assert [find_shard_slice(cut, made, 1, 2) for cut in cuts] == [
        (0, 96, 192),
        (0, 112, 224),
        (1, 48, 96),
        (0, 32, 64),
    ]


@pytest.mark.parametrize(
    ("values", "more", "problem"),
    [
        (V3, {"scoring_func": "softmax"}, "scoring_func is 'softmax', must be 'sigmoid'"),
        (V3, {"topk_method": "greedy"}, "topk_method is 'greedy', must be 'noaux_tc'"),
        (V2, {"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'; supported are 'greedy' and"),
        (V2, {"norm_topk_prob": True}, "norm_topk_prob: "),
        (V2, {"mlp_bias": True}, "mlp_bias is not served"),
        (V3, {"n_group": 3}, "n_group and topk_group: "),
        (V3, {"topk_group": 5}, "n_group and topk_group: "),
        (V3, {"n_group": 16, "topk_group": 8}, "n_group and topk_group: .* each needs two"),
        (V3, {"num_experts_per_tok": 17}, "num_experts_per_tok: `chosen` is 17"),
        (V3, {"head_dim": 32}, "head_dim is 32, must be qk_rope_head_dim, 16"),
        (V3, {"qk_head_dim": 32}, "qk_head_dim is 32, must be that of both parts of a query, 48"),
        (V3, {"num_key_value_heads": 2}, "num_key_value_heads is 2, must be num_attention_heads, 4"),
        (V3, {"kv_lora_rank": 63}, "`kv_lora_rank` and `qk_rope_head_dim` are 63 and 16, must be even"),
        (V3, {"kv_lora_rank": 5_000}, "out of bounds"),
        (V3, {"moe_layer_freq": 2}, "first_k_dense_replace and moe_layer_freq"),
        (V3, {"n_shared_experts": None}, "n_shared_experts is missing"),
    ],
)
def test_what_is_not_served_is_refused_by_name(values: dict[str, Any], more: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        describe(values, **more)


def test_adapters_are_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="latent attention are not served"):
        refuse_model(describe(V3))
