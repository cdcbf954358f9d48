"""How much a model multiplies (pure)."""

from collections.abc import Sequence

from livescale.shared.messages.parameters import ModelConfig


def layer_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """`[out, in]` of a layer's matrices; those with the same input are one."""
    queries = config.num_attention_heads * config.head_dim
    keys_values = 2 * config.num_key_value_heads * config.head_dim
    return [
        (queries + keys_values, config.hidden_size),
        (config.hidden_size, queries),
        (2 * config.intermediate_size, config.hidden_size),
        (config.hidden_size, config.intermediate_size),
    ]


def attention_share(config: ModelConfig, lengths: Sequence[int]) -> float:
    """Of prompts of these lengths: what attention multiplies, for so much that the matrices do. Each position is
    multiplied with keys and values up to its own."""
    matrices = sum(lengths) * sum(rows * columns for rows, columns in layer_shapes(config))
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    return 2 * pairs * config.num_attention_heads * config.head_dim / matrices
