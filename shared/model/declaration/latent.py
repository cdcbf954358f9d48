"""Decoders with multi-head latent attention and DeepSeek's experts, as their configurations describe them. Pure."""

from collections.abc import Mapping
from math import log
from typing import Any

from msgspec.structs import replace

from livescale.shared.messages.layers import Experts, Latent, Scoring
from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import Dense
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.rotation import number

LONGEST = 4_096  # numbers that are kept of a token, of which none is the table of a rotation longer
# What matters while training, or where experts lie.
WHILE_TRAINING = ("aux_loss_alpha", "ep_size")


def describe_latent(config: ConfigFile, experts: Experts, *, interleaved: bool) -> ModelConfig:
    """The model that a configuration describes, with these experts from layer `first_k_dense_replace` on. Raises
    CheckpointError."""
    latent = _read_latent(config)
    dense = Dense(config, head_dim=latent.qk_rope_head_dim)
    _check_heads(dense, latent)
    values = dense.rotations.values()
    rotation = dense.rotations.rotation(values)
    turning = rotation.all_frequencies(latent.qk_rope_head_dim)
    plain = LayerKind(
        frequencies=(*turning, *[0.0] * (latent.kv_lora_rank // 2)),
        attention_scale=latent.query_dim**-0.5 * _louder(values) ** 2,
        output_bias=config.flag("attention_bias"),
    )
    first = config.whole("first_k_dense_replace")
    if first < 0 or config.whole("moe_layer_freq", 1) != 1:
        raise CheckpointError("first_k_dense_replace and moe_layer_freq: all layers after the first ones have experts")
    kinds = [replace(plain, experts=layer >= first) for layer in range(dense.layers)]
    return dense.model(
        *kinds,
        rotation=rotation,
        attention_bias=plain.output_bias,
        interleaved=interleaved,
        experts=experts if any(kind.experts for kind in kinds) else None,
        latent=replace(latent, rope_factor=rotation.score_factor),
        head_dim=latent.kept_dim,
        num_key_value_heads=1,
    )


def _read_latent(config: ConfigFile) -> Latent:
    sizes = {key: config.size(key) for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    rank = config.whole("q_lora_rank", int(config.unless_null("q_lora_rank", 1_536)))
    if rank < 0 or max(sizes.values()) + sizes["qk_rope_head_dim"] > LONGEST:
        raise CheckpointError(f"q_lora_rank, kv_lora_rank and dimensions of heads are {rank}, {sizes}: out of bounds")
    try:
        return Latent(q_lora_rank=rank, **sizes)
    except ValueError as error:
        raise CheckpointError(str(error)) from None


def _check_heads(dense: Dense, latent: Latent) -> None:
    rope, both = latent.qk_rope_head_dim, dense.config.whole("qk_head_dim", latent.query_dim)
    if dense.head_dim != rope:
        raise CheckpointError(f"head_dim is {dense.head_dim}, must be qk_rope_head_dim, {rope}")
    if both != latent.query_dim:
        raise CheckpointError(f"qk_head_dim is {both}, must be that of both parts of a query, {latent.query_dim}")
    if dense.key_heads != dense.heads:
        raise CheckpointError(f"num_key_value_heads is {dense.key_heads}, must be num_attention_heads, {dense.heads}")


def _louder(values: Mapping[str, Any]) -> float:
    """YaRN's factor of queries, and of keys, over a head's whole length."""
    share, kind = values.get("mscale_all_dim"), values.get("rope_type", values.get("type", "default"))
    if not share or kind == "default":
        return 1.0
    factor = number(dict(values), "factor")
    return 1.0 if factor <= 1 else 0.1 * number(dict(values), "mscale_all_dim") * log(factor) + 1.0


def read_routed(config: ConfigFile, scoring: Scoring) -> Experts:
    """DeepSeek's experts, without groups. Raises CheckpointError."""
    for key in WHILE_TRAINING:
        config.number(key, 0.0)
    config.flag("seq_aux")
    if config.text("scoring_func", scoring) != scoring:
        raise CheckpointError(f"scoring_func is {config.text('scoring_func')[:80]!r}, must be {scoring!r}")
    features = config.size("moe_intermediate_size")
    try:
        return Experts(
            count=config.size("n_routed_experts"),
            chosen=config.size("num_experts_per_tok"),
            features=features,
            scoring=scoring,
            scale=config.positive("routed_scaling_factor"),
            shared_features=features * config.size("n_shared_experts"),
        )
    except ValueError as error:
        raise CheckpointError(f"num_experts_per_tok: {error}") from None


def grouped(config: ConfigFile, experts: Experts) -> Experts:
    """The same experts in groups, of which the best ones are used. Raises CheckpointError."""
    try:
        return replace(experts, groups=config.size("n_group"), chosen_groups=config.size("topk_group"))
    except ValueError as error:
        raise CheckpointError(f"n_group and topk_group: {error}") from None
