"""The shapes of made checkpoints, and how large their files are."""

from dataclasses import dataclass

from livescale.load.sizes import Size
from livescale.shared.messages.parameters import Family


@dataclass(frozen=True)
class ModelShape:
    """Odd on purpose: round shapes hide mistakes. The tiny Qwen2 is rounder: its matrices can lie in panels."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int


SHAPES: dict[tuple[Family, Size], ModelShape] = {
    ("llama", "tiny"): ModelShape(1_019, 160, 432, 3, 5, 1, 24),
    ("llama", "small"): ModelShape(8_009, 480, 1_120, 10, 10, 2, 64),
    ("llama", "medium"): ModelShape(16_007, 800, 2_144, 14, 10, 5, 64),
    ("llama", "large"): ModelShape(24_023, 1_536, 2_496, 24, 24, 8, 64),
    ("llama", "light-kv"): ModelShape(8_009, 496, 1_984, 12, 16, 1, 16),
    ("qwen2", "tiny"): ModelShape(1_021, 192, 320, 3, 6, 2, 32),
    ("qwen2", "small"): ModelShape(8_011, 448, 1_344, 12, 7, 1, 64),
    ("qwen2", "medium"): ModelShape(16_033, 896, 2_368, 13, 14, 2, 64),
    ("qwen2", "large"): ModelShape(24_029, 1_536, 2_816, 25, 12, 2, 128),
    ("qwen2", "light-kv"): ModelShape(8_011, 496, 2_240, 13, 16, 1, 16),
}
SHARD_BYTES: dict[Size, int] = {
    "tiny": 1_000_000,
    "small": 24_000_000,
    "medium": 96_000_000,
    "large": 384_000_000,
    "light-kv": 24_000_000,
}
