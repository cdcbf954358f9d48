"""Qwen3: each head of queries and keys is normalized; windows as in Qwen2."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile


def describe(config: ConfigFile) -> ModelConfig:
    dense, bias = Dense(config), config.flag("attention_bias")
    kinds = [LayerKind(head_norm="head", window=window, output_bias=bias) for window in dense.upper_windows()]
    return dense.model(*kinds, attention_bias=bias)


ARCHITECTURE = Architecture(
    "Qwen3ForCausalLM",
    "Qwen3 (dense), -Embedding, -Reranker",
    describe,
    example={"tie_word_embeddings": True, "rms_norm_eps": 1e-6},
)
