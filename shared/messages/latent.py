"""Multi-head latent attention (DeepSeek-V2), whose KV cache keeps one latent of a token for all heads."""

from typing import Annotated

from msgspec import Meta

from livescale.shared.messages.message import Message

Size = Annotated[int, Meta(ge=1, le=2**16)]


class Latent(Message, frozen=True, kw_only=True):
    """Sizes of latent attention, names as in Hugging Face's config.json.

    What is kept of a token are `kv_lora_rank` numbers, of which each head makes its key and value, and a key of
    `qk_rope_head_dim` numbers that rotates and that all heads share. Queries are made of `q_lora_rank` numbers; 0 is of
    the row itself. The part of a score that rotates is multiplied by `rope_factor`.
    """

    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    q_lora_rank: Annotated[int, Meta(ge=0, le=2**16)] = 0
    rope_factor: Annotated[float, Meta(gt=0, le=1e6)] = 1.0

    def __post_init__(self) -> None:
        if self.kv_lora_rank % 2 or self.qk_rope_head_dim % 2:
            raise ValueError(
                f"`kv_lora_rank` and `qk_rope_head_dim` are {self.kv_lora_rank} and {self.qk_rope_head_dim}, must be "
                "even, as RoPE rotates pairs"
            )

    @property
    def query_dim(self) -> int:
        """The numbers of a head's query, as the checkpoint's matrix makes it."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def expanded_dim(self) -> int:
        """The numbers that a head makes of a latent: its key, without the part that rotates, and its value."""
        return self.qk_nope_head_dim + self.v_head_dim

    @property
    def kept_dim(self) -> int:
        """The numbers that are kept of a token."""
        return self.kv_lora_rank + self.qk_rope_head_dim
