"""The tensors of a model: how each is called, its shape, how it is cut over ranks, and where a checkpoint has it. They
follow from the configuration alone. Pure.

Names are those of Llama's checkpoints, whatever a checkpoint itself calls them. Matrices with the same input are
adjacent (q, k, v; gate, up), so that they can be one matrix."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from livescale.shared.messages.layers import Latent
from livescale.shared.messages.parameters import DType, LayerKind, ModelConfig
from livescale.shared.model.declaration.experts import Fused


@dataclass(frozen=True)
class Source:
    """Where a parameter lies in a checkpoint: `rows` rows, from row `start` on, of the tensor `name`.

    `order` says which number of a checkpoint's head is at each place of ours; it is empty where it is the same one.
    An expert's may be `fused` with those of others. A `transposed` matrix `[out, in]` is stored as `[in, out]`: what is
    said of rows is about columns there. It may have another `shape` there, of as many numbers in the same order.
    """

    name: str
    start: int
    rows: int
    order: tuple[int, ...] = ()
    fused: Fused | None = None
    transposed: bool = False
    shape: tuple[int, ...] = ()

    def stored_shape(self, shape: Sequence[int], known: Sequence[int] | None) -> list[int]:
        """The shape of the tensor that holds this parameter of `shape`; those that are `known` so far make it
        `known`."""
        if self.shape:
            return list(self.shape)
        axis = int(self.transposed)
        rows = max(0 if known is None else known[axis], self.start + self.rows)
        return [shape[1], rows] if self.transposed else [rows, *shape[1:]]


EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
POSITIONS = "model.embed_positions.weight"
TYPES = "model.embed_types.weight"
PATCHES = "model.patch_embedding"  # the matrix that makes rows of patches of an image
LOOKED_UP = "model.embed_"  # tables of which rows are taken
SCORE = "score.weight"  # of models that give scores of a prompt
EXPANDING = "self_attn.kv_b_proj.weight"  # what makes keys and values of a latent
ROUTER = ".mlp.gate.weight"  # what chooses experts
SHARED_GATE = "mlp.shared_expert_gate.weight"  # what weighs the MLP that all rows use
CHOICE_BIAS = "mlp.gate.e_score_correction_bias"  # of experts; in bfloat16 it would choose others

# What ranks divide among them: rows of queries, or one for each query head, of keys and values, of what each head makes
# of a latent, of the features of the MLP or of shared experts, of the vocabulary; or the columns that belong to queries
# or features, whose products have to be added. `once` is added by the first rank alone. Experts are divided whole, or
# where the number of ranks does not allow it, each by its features.
Cut = Literal[
    "queries",
    "query_heads",
    "keys",
    "expanded",
    "features",
    "shared_features",
    "tokens",
    "query_columns",
    "feature_columns",
    "shared_columns",
    "once",
    "experts",
    "expert_columns",
]
Shapes = dict[str, list[int]]


class Parameter(NamedTuple):
    """A tensor of a block; `cut` is None where every rank has all of it."""

    name: str
    shape: list[int]
    cut: Cut | None = None


def model_parameters(config: ModelConfig) -> dict[str, list[Parameter]]:
    """The tensors of each block, by the block's name, in the order in which they lie."""
    vocabulary = [config.vocab_size, config.hidden_size]
    blocks = {"embedding": [_embedding(config, vocabulary), *_input(config)]}
    for layer in range(config.num_hidden_layers):
        blocks[f"layer-{layer}"] = list(layer_parameters(config, layer))
    return blocks | {"head": [*_norm(config, "model.norm"), *_head(config, vocabulary)]}


def _embedding(config: ModelConfig, vocabulary: list[int]) -> Parameter:
    return Parameter(EMBEDDING, vocabulary, "tokens" if config.images is None else None)


def _input(config: ModelConfig) -> Iterator[Parameter]:
    """What is added to the embeddings of tokens."""
    if config.adds_positions:
        positions = config.max_position_embeddings + config.position_offset
        yield Parameter(POSITIONS, [positions, config.hidden_size])
    if config.images is not None:
        yield Parameter(f"{PATCHES}.weight", [config.hidden_size, config.images.patch_values])
        yield Parameter(f"{PATCHES}.bias", [config.hidden_size])
    elif config.encodes:
        yield Parameter(TYPES, [config.token_types, config.hidden_size])
        yield from _norm(config, "model.embed_norm")


def _head(config: ModelConfig, vocabulary: list[int]) -> Iterator[Parameter]:
    hidden = config.hidden_size
    if config.pooler:
        yield Parameter("pooler.weight", [hidden, hidden])
        yield Parameter("pooler.bias", [hidden])
    if config.labels:
        yield Parameter(SCORE, [config.labels, hidden])
        if config.encodes:
            yield Parameter("score.bias", [config.labels])
    elif config.pooling == "none" and not config.tie_word_embeddings:
        yield Parameter(HEAD, vocabulary, "tokens")


def _norm(config: ModelConfig, name: str) -> Iterator[Parameter]:
    """The weights of a norm of whole rows; LayerNorm may have biases."""
    yield Parameter(f"{name}.weight", [config.hidden_size])
    if config.has_layer_norms and config.norm_biases:
        yield Parameter(f"{name}.bias", [config.hidden_size])


def layer_parameters(config: ModelConfig, layer: int) -> Iterator[Parameter]:
    """Yield the tensors of one layer, with their shapes and how each is cut over ranks."""
    prefix = f"model.layers.{layer}."
    for name, shape, cut in (*_attention(config, layer), *_mlp(config, layer)):
        yield Parameter(prefix + name, shape, cut)


def own_dtype(name: str) -> DType | None:
    """The type of a tensor that is not served in the model's."""
    return "float32" if name.endswith(CHOICE_BIAS) else None


def _attention(config: ModelConfig, layer: int) -> Iterator[Parameter]:
    kind, hidden = config.kind(layer), config.hidden_size
    if kind.norms_before:
        yield from _norm(config, "input_layernorm")
    if config.latent is None:
        yield from _heads(config, kind)
    else:
        yield from _latent(config, config.latent)
    if kind.output_bias:
        yield Parameter("self_attn.o_proj.bias", [hidden], "once")
    if kind.norms_after:
        yield Parameter("self_attn.output_layernorm.weight", [hidden])
    if kind.norms_sum:
        yield from _norm(config, "self_attn.sum_layernorm")


def _latent(config: ModelConfig, latent: Latent) -> Iterator[Parameter]:
    """The matrices of latent attention, named as in checkpoints of DeepSeek."""
    hidden, heads, rank = config.hidden_size, config.num_attention_heads, latent.q_lora_rank
    queries = heads * latent.query_dim
    if rank:
        yield Parameter("self_attn.q_a_proj.weight", [rank, hidden])
    else:
        yield Parameter("self_attn.q_proj.weight", [queries, hidden], "queries")
    yield Parameter("self_attn.kv_a_proj_with_mqa.weight", [latent.kept_dim, hidden])
    if config.attention_bias:
        if rank:
            yield Parameter("self_attn.q_a_proj.bias", [rank])
        yield Parameter("self_attn.kv_a_proj_with_mqa.bias", [latent.kept_dim])
    if rank:
        yield Parameter("self_attn.q_a_layernorm.weight", [rank])
        yield Parameter("self_attn.q_b_proj.weight", [queries, rank], "queries")
    yield Parameter("self_attn.kv_a_layernorm.weight", [latent.kv_lora_rank])
    yield Parameter(EXPANDING, [heads * latent.expanded_dim, latent.kv_lora_rank], "expanded")
    yield Parameter("self_attn.o_proj.weight", [hidden, heads * latent.v_head_dim], "query_columns")


def _heads(config: ModelConfig, kind: LayerKind) -> Iterator[Parameter]:
    hidden, head_dim = config.hidden_size, config.head_dim
    q, kv = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    yield Parameter("self_attn.q_proj.weight", [q, hidden], "queries")
    yield Parameter("self_attn.k_proj.weight", [kv, hidden], "keys")
    yield Parameter("self_attn.v_proj.weight", [kv, hidden], "keys")
    if config.attention_bias:
        yield Parameter("self_attn.q_proj.bias", [q], "queries")
        yield Parameter("self_attn.k_proj.bias", [kv], "keys")
        yield Parameter("self_attn.v_proj.bias", [kv], "keys")
    if kind.head_norm == "head":
        yield Parameter("self_attn.q_norm.weight", [head_dim])
        yield Parameter("self_attn.k_norm.weight", [head_dim])
    elif kind.head_norm == "row":
        yield Parameter("self_attn.q_norm.weight", [q], "queries")
        yield Parameter("self_attn.k_norm.weight", [kv], "keys")
    if kind.sinks:
        yield Parameter("self_attn.sinks", [config.num_attention_heads], "query_heads")
    yield Parameter("self_attn.o_proj.weight", [hidden, q], "query_columns")


def _mlp(config: ModelConfig, layer: int) -> Iterator[Parameter]:
    kind, hidden, features = config.kind(layer), config.hidden_size, config.intermediate_size
    if kind.norms_before and not kind.parallel:
        yield from _norm(config, "post_attention_layernorm")
    if kind.experts:
        yield from _experts(config)
    else:
        yield from _dense(kind, hidden, features)
    if kind.norms_after:
        yield Parameter("mlp.output_layernorm.weight", [hidden])
    if kind.norms_sum and layer < config.num_hidden_layers - 1:  # the last one's is the norm before the head
        yield from _norm(config, "mlp.sum_layernorm")


def _dense(kind: LayerKind, hidden: int, features: int) -> Iterator[Parameter]:
    if kind.gated:
        yield Parameter("mlp.gate_proj.weight", [features, hidden], "features")
    yield Parameter("mlp.up_proj.weight", [features, hidden], "features")
    if kind.mlp_bias:
        if kind.gated:
            yield Parameter("mlp.gate_proj.bias", [features], "features")
        yield Parameter("mlp.up_proj.bias", [features], "features")
    yield Parameter("mlp.down_proj.weight", [hidden, features], "feature_columns")
    if kind.mlp_bias:
        yield Parameter("mlp.down_proj.bias", [hidden], "once")


def _experts(config: ModelConfig) -> Iterator[Parameter]:
    """The router, one tensor of each kind for all experts, and those of the MLP that all rows use."""
    experts, hidden = config.experts, config.hidden_size
    assert experts is not None
    here, features = len(experts.here), experts.features
    yield Parameter("mlp.gate.weight", [experts.count, hidden])
    if experts.scoring == "sigmoid":
        yield Parameter(CHOICE_BIAS, [experts.count])
    if experts.biased:
        yield Parameter("mlp.gate.bias", [experts.count])
        yield Parameter("mlp.experts.gate_proj.bias", [here, features], "experts")
        yield Parameter("mlp.experts.up_proj.bias", [here, features], "experts")
        yield Parameter("mlp.experts.down_proj.bias", [here, hidden])
    yield Parameter("mlp.experts.gate_proj.weight", [here, features, hidden], "experts")
    yield Parameter("mlp.experts.up_proj.weight", [here, features, hidden], "experts")
    yield Parameter("mlp.experts.down_proj.weight", [here, hidden, features], "expert_columns")
    if experts.shared_features:
        shared = experts.shared_features
        yield Parameter("mlp.shared_experts.gate_proj.weight", [shared, hidden], "shared_features")
        yield Parameter("mlp.shared_experts.up_proj.weight", [shared, hidden], "shared_features")
        yield Parameter("mlp.shared_experts.down_proj.weight", [hidden, shared], "shared_columns")
    if experts.shared_gate:
        yield Parameter(SHARED_GATE, [1, hidden])
