"""Parameters: a model is an ordered list of blocks, described by a manifest.

Order: block 0 is the embedding, blocks 1..L are the layers 0..L-1, block L+1 is final norm + head. A tied head
has no tensor of its own: it uses the embedding's.
"""

from typing import Annotated, Literal

from msgspec import Meta, structs

from livescale.shared.messages.images import Images
from livescale.shared.messages.layers import Experts, Latent, RopeScaling, Scaling
from livescale.shared.messages.message import Amount, Count, Message, Name, Positive, TokenId
from livescale.shared.messages.quantization import Packing, Quantization

DType = Literal["float32", "bfloat16"]
# How keys and values are kept: as they are computed, or rounded to float8_e4m3fn.
KvCacheDType = Literal["auto", "fp8"]
Family = Annotated[str, Meta(min_length=1, max_length=64)]  # `model_type` of config.json
NodeKind = Literal["worker", "host"]
# The order of a model's matrices: row by row, or as CPU kernels read them where the shape allows it.
Layout = Literal["plain", "panels"]
Dimension = Annotated[int, Meta(ge=1, le=2**24)]  # of one dimension of a parameter
Layers = Annotated[int, Meta(ge=1, le=10_000)]
Shape = Annotated[list[Dimension], Meta(max_length=4)]


# Whether queries and keys are normalized before they rotate: not, each head by itself, or all heads of a row at once.
HeadNorm = Literal["none", "head", "row"]
Activation = Literal["silu", "gelu_tanh", "gelu", "relu"]
# What a model makes of a prompt: the likelihood of its next token, or one vector: the last row, the first, or the mean.
Pooling = Literal["none", "last", "cls", "mean"]
Factor = Annotated[float, Meta(gt=0, le=1e6)]
Radians = Annotated[float, Meta(ge=0, le=10)]


class LayerKind(Message, frozen=True, kw_only=True):
    """What layers of one kind compute. The defaults are Llama's.

    `window`: how many positions a row sees, its own included; 0 is all. `frequencies`: radians per position of each
    pair of numbers of a head, zeros for those that do not rotate; None follows from the model's `rope_theta` and
    `rope_scaling`. `short_frequencies` are those of short contexts, see ModelConfig. `turning_scale`: the factor of
    what rotates. `attention_scale`: the factor of scores; 0 is 1 / sqrt(head_dim). `score_cap`: scores are bent
    towards this limit by a tangent; 0 is none. `norms_before` and `norms_after`: whether attention and MLP normalize
    their input, and their output. `norms_sum`: whether the sum of their output and the residual is normalized, that of
    the last MLP by the norm before the head. `parallel`: whether the MLP has the input of attention, and its norm.
    `gated`: whether what is activated is multiplied by the output of another matrix. `residual_scale`: the factor of
    what is added to the residual. `experts`: whether the MLP is the model's experts. `sinks`: whether each query head
    has a score more, that of no position.
    """

    window: Count = 0
    frequencies: Annotated[tuple[Radians, ...], Meta(max_length=4096)] | None = None
    short_frequencies: Annotated[tuple[Radians, ...], Meta(max_length=4096)] | None = None
    turning_scale: Factor = 1.0
    attention_scale: Amount = 0.0
    score_cap: Amount = 0.0
    head_norm: HeadNorm = "none"
    norms_before: bool = True
    norms_after: bool = False
    norms_sum: bool = False
    parallel: bool = False
    gated: bool = True
    activation: Activation = "silu"
    output_bias: bool = False
    mlp_bias: bool = False
    residual_scale: Factor = 1.0
    experts: bool = False
    sinks: bool = False


LLAMA_LAYER = LayerKind()


class ModelConfig(Message, frozen=True, kw_only=True):
    """What an engine must know of an architecture, names as in Hugging Face's config.json.

    Layer i is of kind `kinds[layer_kinds[i]]`. Without `kinds` all layers are as Llama's, without `layer_kinds` all are
    of the first kind. `embedding_scale` is the factor of embeddings, rounded to the serving dtype. `logits_scale` is
    the factor of logits, which are then bent towards `logits_cap`; 0 is none. `norm_offset` is added to the weights of
    norms. A checkpoint's heads rotate in their first `rotary_dim` numbers, 0 is all; where they are `interleaved`,
    pairs are neighbours. In blocks the two numbers of a pair are half a head apart. An instance whose requests have at
    most `short_positions` tokens takes the `short_frequencies` of layers that have some: a request's own length would
    part prompts that begin alike.

    With `layer_norms` norms of whole rows are LayerNorms, which have biases unless `norm_biases` is false. With
    `learned_positions` embeddings of positions are added to those of tokens, from row `position_offset` of their table
    on.

    The rows of a model that `encodes` see each other, so that a prompt is computed in one piece. It has LayerNorms and
    learned positions without saying so. Embeddings of `token_types` types are added, too: the second of two texts has
    the second type. A model of `images` has one token, which stands for the image, and a matrix of patches in place of
    types; each rank has all of them.

    A model with a `pooling` makes vectors and no tokens; they have the length 1 where it is `normalized`. With `labels`
    a matrix makes of them as many scores, with a `pooler` after another matrix and a tangent. Scores are likelihoods
    once they are bent, unless they are `bare_scores`. `classifier_from_token`: the tokens by which a model that
    generates says that a text does not fit another one, or does.

    `quantization` says which matrices are packed. `kv_cache_dtype` is no key of config.json: an operator chooses it.

    With a `latent` attention is that of DeepSeek-V2: `head_dim` is what is kept of a token, and the only KV head has
    it as key and value at once.
    """

    family: Family
    vocab_size: Dimension
    hidden_size: Dimension
    intermediate_size: Dimension
    num_hidden_layers: Layers
    num_attention_heads: Dimension
    num_key_value_heads: Dimension
    head_dim: Dimension
    rms_norm_eps: Amount
    rope_theta: Scaling
    max_position_embeddings: Positive
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    eos_token_ids: list[TokenId] = []
    bos_token_id: TokenId | None = None
    kinds: Annotated[list[LayerKind], Meta(max_length=64)] = []
    layer_kinds: Annotated[list[Count], Meta(max_length=10_000)] = []
    embedding_scale: Factor = 1.0
    logits_scale: Factor = 1.0
    logits_cap: Amount = 0.0
    norm_offset: Amount = 0.0
    rotary_dim: Count = 0
    short_positions: Count = 0
    interleaved: bool = False
    experts: Experts | None = None
    layer_norms: bool = False
    norm_biases: bool = True
    learned_positions: bool = False
    encodes: bool = False
    position_offset: Annotated[int, Meta(ge=0, le=1_024)] = 0
    token_types: Annotated[int, Meta(ge=0, le=1_024)] = 0
    pooler: bool = False
    pooling: Pooling = "none"
    normalized: bool = False
    bare_scores: bool = False
    labels: Annotated[int, Meta(ge=0, le=65_536)] = 0
    classifier_from_token: Annotated[list[Name], Meta(max_length=2)] = []
    quantization: Quantization | None = None
    latent: Latent | None = None
    images: Images | None = None
    kv_cache_dtype: KvCacheDType = "auto"

    def __post_init__(self) -> None:
        if self.layer_kinds and len(self.layer_kinds) != self.num_hidden_layers:
            raise ValueError(f"`layer_kinds` are {len(self.layer_kinds)} for {self.num_hidden_layers} layers")
        if max(self.layer_kinds, default=0) >= max(len(self.kinds), 1):
            raise ValueError(f"`layer_kinds` name more kinds than `kinds` has, {len(self.kinds)}")
        if self.experts is None and any(kind.experts for kind in self.kinds):
            raise ValueError("`kinds` have experts, and the model has none")
        if self.quantization is not None and len(self.quantization.layers) not in (0, self.num_hidden_layers):
            raise ValueError(f"`quantization` has {len(self.quantization.layers)} of {self.num_hidden_layers} layers")
        if self.latent is not None and (self.head_dim, self.num_key_value_heads) != (self.latent.kept_dim, 1):
            raise ValueError(
                f"`head_dim` is {self.head_dim}, and the latent makes it {self.latent.kept_dim} of one head"
            )
        if self.latent is not None and self.kv_cache_dtype != "auto":
            raise ValueError(
                f"`kv_cache_dtype` is {self.kv_cache_dtype}, in which latents are not kept; leave it at auto"
            )

    @property
    def has_layer_norms(self) -> bool:
        """Whether norms of whole rows are LayerNorms."""
        return self.layer_norms or self.encodes

    @property
    def adds_positions(self) -> bool:
        """Whether embeddings of positions are added to those of tokens."""
        return self.learned_positions or self.encodes

    @property
    def has_dense_layers(self) -> bool:
        """Whether the MLP of some layer is not the experts."""
        return not all(self.kind(layer).experts for layer in range(self.num_hidden_layers))

    @property
    def kv_parts(self) -> int:
        """How many vectors a KV head keeps of a token: key and value, or a latent that is both."""
        return 2 if self.latent is None else 1

    def kind(self, layer: int) -> LayerKind:
        """Return what the layer of this number computes."""
        if not self.kinds:
            return LLAMA_LAYER
        return self.kinds[self.layer_kinds[layer] if self.layer_kinds else 0]


class Tensor(Message, frozen=True, kw_only=True):
    """One tensor inside a block, at `offset` bytes: row-major, or in panels of 64 rows, each `[in / 2, 64, 2]`. It is
    named as in a checkpoint of Llama. With a `packing` it lies in packed panels. A `dtype` is its own, else it has the
    model's."""

    name: Name
    shape: Shape
    offset: Count
    layout: Layout = "plain"
    packing: Packing | None = None
    dtype: DType | None = None


class Block(Message, frozen=True, kw_only=True):
    """One contiguous buffer: the unit of loading. `checksum` is xxh3-64 of all its `size_bytes` bytes."""

    index: Count
    name: Name
    size_bytes: Count
    checksum: Annotated[int, Meta(ge=0)]
    tensors: list[Tensor]

    def __post_init__(self) -> None:
        if self.checksum >= 2**64:  # more than msgspec's bounds can say
            raise ValueError("`checksum` has more than 64 bits")


class BlockKey(Message, frozen=True, kw_only=True):
    """Names a block's exact bytes; checksum and choice of source are per key."""

    version: Name
    index: Count
    shard: Count = 0
    shards: Positive = 1
    dtype: DType = "bfloat16"
    layout: Layout = "plain"


class Manifest(Message, frozen=True, kw_only=True):
    """A model version: everything but the bytes. `version` is the content hash of config and blocks (hex).

    A model that is cut for several ranks is the blocks of all `shards`, one shard after the other; what one rank has of
    it, and a manifest `of_shard` is about, are those of `shard`.
    """

    version: Name
    config: ModelConfig
    dtype: DType
    layout: Layout = "plain"
    shard: Count = 0
    shards: Positive = 1
    blocks: list[Block]

    @property
    def size_bytes(self) -> int:
        return sum(block.size_bytes for block in self.blocks)

    @property
    def held_as(self) -> str:
        """The version as a worker reports it. One shard of several is named otherwise, being no copy of the version."""
        return self.version if self.shards == 1 else f"{self.version}.{self.shard}of{self.shards}"

    def of_shard(self, shard: int) -> "Manifest":
        """The manifest of what rank `shard` holds: its own blocks, counted from 0."""
        each = len(self.blocks) // self.shards
        blocks = self.blocks[shard * each : (shard + 1) * each]
        own = [structs.replace(block, index=index) for index, block in enumerate(blocks)]
        return structs.replace(self, shard=shard, blocks=own)

    def key(self, index: int) -> BlockKey:
        return BlockKey(
            version=self.version,
            index=index,
            shard=self.shard,
            shards=self.shards,
            dtype=self.dtype,
            layout=self.layout,
        )
