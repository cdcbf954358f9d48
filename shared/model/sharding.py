"""Tensor parallelism (Megatron-LM): which part of each tensor a rank has. Pure.

Queries, keys, values, gate and up are cut by rows, in whole heads. What follows them is cut by columns, so that its
products have to be added. Of latent attention each rank makes and keeps the whole latent, for its own heads. Experts
are divided among ranks where their number allows it (expert parallelism), else each is cut as an MLP is. Embedding and
head are cut by the vocabulary. Every rank has all norms, and ranks that need the same key head each have it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from livescale.shared.messages.layers import Experts
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.declaration.experts import each_name
from livescale.shared.model.declaration.tensors import Cut

MOST_SHARDS = 64


class ShardSlice(NamedTuple):
    """Indices `start` .. `stop` of one dimension: 0, rows, or 1, columns."""

    dimension: int
    start: int
    stop: int


def check_shards(config: ModelConfig, shards: int) -> None:
    """Check that the model can be cut for so many ranks. Raises ValueError, which says what numbers would do."""
    problem = _problem(config, shards)
    if problem is not None:
        fitting = ", ".join(map(str, possible_shards(config)))
        raise ValueError(f"tensor_parallel_size is {shards} and {problem}; this model can have {fitting}")


def possible_shards(config: ModelConfig) -> list[int]:
    """The numbers of ranks that the model can be cut for."""
    counts = range(1, min(config.num_attention_heads, MOST_SHARDS) + 1)
    return [count for count in counts if _problem(config, count) is None]


def shard_config(config: ModelConfig, shard: int, shards: int) -> ModelConfig:
    """The configuration of the model as rank `shard` computes it: fewer heads, features and tokens."""
    return replace(
        config,
        num_attention_heads=config.num_attention_heads // shards,
        num_key_value_heads=max(1, config.num_key_value_heads // shards),
        intermediate_size=config.intermediate_size // shards,
        vocab_size=len(vocabulary(config, shard, shards)),
        experts=config.experts and _experts_of(config.experts, shard, shards),
    )


def experts_of(config: ModelConfig, shard: int, shards: int) -> range:
    """The experts of this rank, counted as in the whole model."""
    return range(0) if config.experts is None else _experts_of(config.experts, shard, shards).here


def stored_names(name: str, config: ModelConfig, shard: int, shards: int) -> list[str]:
    """The names by which a checkpoint has what this rank holds of a tensor: one for each of its experts."""
    return each_name(name, experts_of(config, shard, shards))


def _experts_of(experts: Experts, shard: int, shards: int) -> Experts:
    experts = replace(experts, shared_features=experts.shared_features // shards)
    if experts.count % shards:
        return replace(experts, features=experts.features // shards)
    held = experts.count // shards
    return replace(experts, first=shard * held, held=held)


def vocabulary(config: ModelConfig, shard: int, shards: int) -> range:
    """The token ids of this rank; the last may have fewer than the others. Every rank has the one token of images."""
    if config.images is not None:
        return range(config.vocab_size)
    each = -(-config.vocab_size // shards)
    return range(shard * each, min((shard + 1) * each, config.vocab_size))


def find_shard_slice(cut: Cut | None, config: ModelConfig, shard: int, shards: int) -> ShardSlice | None:
    """The slice that rank `shard` has of a tensor that is cut in this way; None is all of it. Of experts it is the
    slice of each one that the rank has."""
    if shards == 1:
        return None
    part = shard_config(config, shard, shards)
    features = part.intermediate_size
    match cut:
        case "queries" | "query_columns" | "query_heads" | "expanded":
            own = part.num_attention_heads * _numbers_of_a_head(cut, config)
            return ShardSlice(int(cut == "query_columns"), shard * own, (shard + 1) * own)
        case "keys":
            first = shard * config.num_key_value_heads // shards * config.head_dim
            return ShardSlice(0, first, first + part.num_key_value_heads * config.head_dim)
        case "features" | "feature_columns":
            return ShardSlice(int(cut == "feature_columns"), shard * features, (shard + 1) * features)
        case "shared_features" | "shared_columns":
            own = 0 if part.experts is None else part.experts.shared_features
            return ShardSlice(int(cut == "shared_columns"), shard * own, (shard + 1) * own)
        case "tokens":
            tokens = vocabulary(config, shard, shards)
            return ShardSlice(0, tokens.start, tokens.stop)
        case "experts" | "expert_columns":
            if part.experts is None or not part.experts.cut_inside:
                return None  # whole experts
            own = part.experts.features
            return ShardSlice(int(cut == "expert_columns"), shard * own, (shard + 1) * own)
        case "once" | None:
            return None


def _numbers_of_a_head(cut: Cut, config: ModelConfig) -> int:
    """How many rows or columns of a tensor that is cut by heads are those of one."""
    if cut == "query_heads":
        return 1
    latent = config.latent
    if latent is None:
        return config.head_dim
    if cut == "expanded":
        return latent.expanded_dim
    return latent.query_dim if cut == "queries" else latent.v_head_dim


def _problem(config: ModelConfig, shards: int) -> str | None:
    return next(_problems(config, shards), None)


def _problems(config: ModelConfig, shards: int) -> Iterator[str]:
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % shards:
        yield f"does not divide num_attention_heads, {heads}"
    if key_heads % shards and shards % key_heads:
        yield f"neither divides num_key_value_heads, {key_heads}, nor is a multiple of it"
    if config.has_dense_layers and config.intermediate_size % shards:
        yield f"does not divide intermediate_size, {config.intermediate_size}"
    experts = config.experts
    if experts is not None and experts.count % shards and experts.features % shards:
        yield f"divides neither the {experts.count} experts nor their {experts.features} features"
    if experts is not None and experts.shared_features % shards:
        yield f"does not divide the {experts.shared_features} features of shared experts"
    yield from _cut_groups(config, shards)
    if not vocabulary(config, shards - 1, shards):
        yield f"is too many for a vocabulary of {config.vocab_size}"


def _cut_groups(config: ModelConfig, shards: int) -> Iterator[str]:
    """Groups of inputs with one scale that ranks would cut into pieces."""
    if config.quantization is None or shards == 1:
        return
    part = shard_config(config, 0, shards)
    head_dim = part.head_dim if part.latent is None else part.latent.v_head_dim
    widths = {"self_attn.o_proj": part.num_attention_heads * head_dim, "mlp.down_proj": part.intermediate_size}
    if part.experts is not None:
        widths["mlp.experts.down_proj"] = part.experts.features
        widths["mlp.shared_experts.down_proj"] = part.experts.shared_features
    for name, width in widths.items():
        for layer in range(config.num_hidden_layers):
            packing = config.quantization.packing(layer, name)
            if packing is not None and packing.group and width % packing.group:
                yield f"cuts groups of {packing.group} inputs of {name}, of which a rank would have {width}"
                break
