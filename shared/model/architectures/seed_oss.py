"""Seed-OSS: Llama with biases for queries, keys and values."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile


def describe(config: ConfigFile) -> ModelConfig:
    config.number("residual_dropout", 0.0)  # while training
    dense = Dense(config, head_dim=int(config.unless_null("head_dim", 128)))
    kind = LayerKind(output_bias=config.flag("attention_out_bias"), mlp_bias=config.flag("mlp_bias"))
    return dense.model(kind, attention_bias=config.flag("attention_bias", True))


ARCHITECTURE = Architecture(
    "SeedOssForCausalLM", "Seed-OSS 36B", describe, example={"attention_bias": True, "attention_out_bias": False}
)
