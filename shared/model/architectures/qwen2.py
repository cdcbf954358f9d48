"""Qwen2: Llama with biases for queries, keys and values, and a window for the upper layers where it is switched on."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.architecture import Architecture, Dense
from livescale.shared.model.config_file import ConfigFile


def describe(config: ConfigFile) -> ModelConfig:
    dense = Dense(config)
    windows = dense.upper_windows()
    return dense.model(*(LayerKind(window=window) for window in windows), attention_bias=True)


ARCHITECTURE = Architecture(
    "Qwen2ForCausalLM",
    "Qwen2, Qwen2.5, DeepSeek-R1 distills of Qwen",
    describe,
    example={"tie_word_embeddings": True},
)
