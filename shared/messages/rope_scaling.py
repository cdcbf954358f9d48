"""How a model's rotary positions are stretched beyond those that it learnt."""

from typing import Annotated

from msgspec import Meta

from livescale.shared.messages.message import Message, Positive

Scaling = Annotated[float, Meta(gt=0, le=1e15)]


class RopeScaling(Message, frozen=True, kw_only=True):
    """Llama 3's RoPE scaling (`rope_type: llama3`), names as in Hugging Face's config.json."""

    factor: Scaling
    low_freq_factor: Scaling
    high_freq_factor: Scaling
    original_max_position_embeddings: Positive
