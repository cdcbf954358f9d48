"""Models that are known by their size, with the shapes of published ones. No file is needed to simulate them."""

from pathlib import Path

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.checkpoint import load_model_config


def llama(
    vocabulary: int, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, context: int
) -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        max_position_embeddings=context,
    )


# As Llama 2, Llama 3 (8b), Mistral Small (24b) and Qwen2.5 (72b) are.
SIZES = {
    "7b": llama(32_000, 4_096, 11_008, 32, 32, 32, 4_096),
    "8b": llama(128_256, 4_096, 14_336, 32, 32, 8, 8_192),
    "13b": llama(32_000, 5_120, 13_824, 40, 40, 40, 4_096),
    "24b": llama(131_072, 5_120, 32_768, 40, 32, 8, 32_768),
    "70b": llama(32_000, 8_192, 28_672, 80, 64, 8, 4_096),
    "72b": llama(152_064, 8_192, 29_568, 80, 64, 8, 32_768),
}


def find_config(path: str, beside: Path) -> tuple[str, ModelConfig]:
    """The shape of a model: of a size, or of the config.json in a directory, which counts from `beside`.

    With it goes the path that it has on simulated disks. Raises ValueError.
    """
    if path.lower() in SIZES:
        return f"size:{path.lower()}", SIZES[path.lower()]
    directory = (beside / path).resolve()
    if not directory.is_dir():
        raise ValueError(f"{path!r} is neither a directory with a config.json nor a known size ({', '.join(SIZES)})")
    return str(directory), load_model_config(directory)
