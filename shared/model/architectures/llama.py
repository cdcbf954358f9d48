"""Llama: what all others are told apart from."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.architecture import Architecture, Dense
from livescale.shared.model.config_file import ConfigFile


def describe(config: ConfigFile) -> ModelConfig:
    bias = config.flag("attention_bias")
    return Dense(config).model(LayerKind(output_bias=bias, mlp_bias=config.flag("mlp_bias")), attention_bias=bias)


ARCHITECTURE = Architecture(
    "LlamaForCausalLM",
    "Llama 2, 3, 3.1, 3.2 (text) and 3.3, DeepSeek-R1 distills of Llama",
    describe,
    example={
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        }
    },
)
