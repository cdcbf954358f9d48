"""Granite: Llama with factors for embeddings, scores, residuals and logits."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile


def describe(config: ConfigFile) -> ModelConfig:
    bias = config.flag("attention_bias")
    kind = LayerKind(
        attention_scale=config.number("attention_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias"),
    )
    return Dense(config).model(
        kind,
        attention_bias=bias,
        embedding_scale=config.number("embedding_multiplier", 1.0),
        logits_scale=1 / config.positive("logits_scaling", 1.0),
    )


ARCHITECTURE = Architecture(
    "GraniteForCausalLM",
    "Granite 3 (dense)",
    describe,
    example={
        "attention_multiplier": 0.25,
        "residual_multiplier": 0.5,
        "embedding_multiplier": 1.5,
        "logits_scaling": 0.75,
    },
)
