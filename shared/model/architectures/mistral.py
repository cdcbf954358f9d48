"""Mistral: Llama whose rows see a window, where the file says one."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile


def describe(config: ConfigFile) -> ModelConfig:
    dense = Dense(config)
    return dense.model(dense.windowed(LayerKind()))


ARCHITECTURE = Architecture(
    "MistralForCausalLM", "Mistral 7B, Mistral NeMo, Mistral Small (text)", describe, example={"sliding_window": 100}
)
