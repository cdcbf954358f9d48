"""Layers that are not Llama's: an MLP of many experts (Shazeer et al.), and multi-head latent attention (DeepSeek-V2),
whose KV cache keeps one latent of a token for all heads. Rotary positions may be stretched beyond those that a model
learnt."""

from typing import Annotated, Literal

from msgspec import Meta

from livescale.shared.messages.message import Amount, Count, Message, Positive

Scaling = Annotated[float, Meta(gt=0, le=1e15)]

# What the router's logits become: shares of all experts, or each a likelihood of its own.
Scoring = Literal["softmax", "sigmoid"]


class RopeScaling(Message, frozen=True, kw_only=True):
    """Llama 3's RoPE scaling (`rope_type: llama3`), names as in Hugging Face's config.json."""

    factor: Scaling
    low_freq_factor: Scaling
    high_freq_factor: Scaling
    original_max_position_embeddings: Positive


class Experts(Message, frozen=True, kw_only=True):
    """An MLP as `count` experts of `features` features each, of which a router chooses `chosen` for each row.

    Chosen experts weigh what the router's softmax gives them; where it is `normalized`, the weights are divided by
    their sum. A rank has the `held` experts from `first` on; 0 is all of them. Where they are `biased`, the router and
    all matrices of experts have biases. With a `swiglu_limit` gate and up are clamped, and the activation is gate *
    sigmoid(swiglu_alpha * gate) * (up + 1).

    With the `scoring` sigmoid experts weigh their likelihood, and are chosen by the sum of that and a bias. With
    `groups` the experts are divided into so many of consecutive ones, and only those of the `chosen_groups` best ones
    are chosen. A group is as good as its best expert, with sigmoid as the sum of its best two. Weights are multiplied
    by `scale`. Each row also uses an MLP of `shared_features` features; 0 is none. Its weight is 1, or with
    a `shared_gate` a likelihood that a matrix makes of the row.
    """

    count: Annotated[int, Meta(ge=1, le=65_536)]
    chosen: Annotated[int, Meta(ge=1, le=65_536)]
    features: Annotated[int, Meta(ge=1, le=2**24)]
    normalized: bool = False
    first: Count = 0
    held: Count = 0
    biased: bool = False
    swiglu_alpha: Annotated[float, Meta(gt=0, le=1e3)] = 1.702
    swiglu_limit: Amount = 0.0
    scoring: Scoring = "softmax"
    groups: Annotated[int, Meta(ge=1, le=4_096)] = 1
    chosen_groups: Annotated[int, Meta(ge=1, le=4_096)] = 1
    scale: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    shared_features: Annotated[int, Meta(ge=0, le=2**24)] = 0
    shared_gate: bool = False

    def __post_init__(self) -> None:
        self._check_groups()
        if self.chosen > self.count or self.first + self.held > self.count:
            raise ValueError(f"`chosen` is {self.chosen}, and the last expert here {self.here.stop}, of {self.count}")

    def _check_groups(self) -> None:
        each, rest = divmod(self.count, self.groups)
        if rest or self.chosen_groups > self.groups or self.chosen > self.chosen_groups * each:
            raise ValueError(
                f"`chosen` is {self.chosen}, of {self.chosen_groups} of {self.groups} groups of {self.count} experts"
            )
        if self.groups > 1 and self.scoring == "sigmoid" and each < 2:
            raise ValueError(f"`groups` are {self.groups} of {self.count} experts, and each needs two")

    @property
    def cut_inside(self) -> bool:
        """Whether each rank that does not have all experts has a part of each one."""
        return self.held == 0

    @property
    def here(self) -> range:
        """The range of experts that this rank has."""
        return range(self.first, self.first + (self.held or self.count))


LatentSize = Annotated[int, Meta(ge=1, le=2**16)]


class Latent(Message, frozen=True, kw_only=True):
    """Sizes of latent attention, names as in Hugging Face's config.json.

    What is kept of a token are `kv_lora_rank` numbers, of which each head makes its key and value, and a key of
    `qk_rope_head_dim` numbers that rotates and that all heads share. Queries are made of `q_lora_rank` numbers; 0 is of
    the row itself. The part of a score that rotates is multiplied by `rope_factor`.
    """

    kv_lora_rank: LatentSize
    qk_nope_head_dim: LatentSize
    qk_rope_head_dim: LatentSize
    v_head_dim: LatentSize
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
        """The numbers that the KV cache keeps of a token: the latent, and the key that rotates."""
        return self.kv_lora_rank + self.qk_rope_head_dim
