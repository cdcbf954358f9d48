"""Parameters: a model is an ordered list of blocks, described by a manifest.

Order: block 0 is the embedding, blocks 1..L are the layers 0..L-1, block L+1 is final norm + head. A tied head
has no tensor of its own: it uses the embedding's.
"""

from typing import Literal

from shared.messages.message import Message

DType = Literal["float32", "bfloat16"]
Family = Literal["llama", "qwen2"]
Place = Literal["worker", "host"]


class RopeScaling(Message, frozen=True, kw_only=True):
    """Llama 3's RoPE scaling (`rope_type: llama3`), names as in Hugging Face's config.json."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class ModelConfig(Message, frozen=True, kw_only=True):
    """What an engine must know of an architecture, names as in Hugging Face's config.json."""

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    eos_token_ids: list[int] = []
    bos_token_id: int | None = None


class Tensor(Message, frozen=True, kw_only=True):
    """One tensor inside a block: row-major at `offset` bytes, name as in the checkpoint."""

    name: str
    shape: list[int]
    offset: int


class Block(Message, frozen=True, kw_only=True):
    """One contiguous buffer: the unit of loading. `checksum` is xxh3-64 of all its `size_bytes` bytes."""

    index: int
    name: str
    size_bytes: int
    checksum: int
    tensors: list[Tensor]


class BlockKey(Message, frozen=True, kw_only=True):
    """Names a block's exact bytes; checksum and choice of source are per key."""

    version: str
    index: int
    shard: int = 0
    shards: int = 1
    dtype: DType = "bfloat16"
    layout: str = "plain"


class Manifest(Message, frozen=True, kw_only=True):
    """A model version: everything but the bytes. `version` is the content hash of config and blocks (hex)."""

    version: str
    config: ModelConfig
    dtype: DType
    layout: str = "plain"
    shard: int = 0
    shards: int = 1
    blocks: list[Block]

    @property
    def size_bytes(self) -> int:
        return sum(block.size_bytes for block in self.blocks)

    def key(self, index: int) -> BlockKey:
        return BlockKey(
            version=self.version,
            index=index,
            shard=self.shard,
            shards=self.shards,
            dtype=self.dtype,
            layout=self.layout,
        )


class ScalingBounds(Message, frozen=True, kw_only=True):
    """BlitzScale's scaling bounds: what part of an instance's capacity may be used before one is added (hi) or
    given back (lo). `prefill_*` in seconds of queued prefill work per instance, `decode_*` as a share of KV blocks."""

    prefill_lo: float = 0.5
    prefill_hi: float = 0.7
    decode_lo: float = 0.75
    decode_hi: float = 0.95


class ModelSpec(Message, frozen=True, kw_only=True):
    """What an operator declares of a model. `path` is a directory in Hugging Face format on the hosts.

    `downscale_delay_s`: how long fewer instances must have been enough before one is given back,
    `downscale_to_zero_delay_s` before the last one is.
    `max_model_len`: tokens a request may have, prompt and output together; None takes the checkpoint's own limit.
    """

    name: str
    path: str
    dtype: DType = "bfloat16"
    min_instances: int = 1
    max_instances: int = 1_000
    bounds: ScalingBounds = ScalingBounds()
    upscale_delay_s: float = 0.0
    downscale_delay_s: float = 5.0
    downscale_to_zero_delay_s: float = 60.0
    max_model_len: int | None = None
