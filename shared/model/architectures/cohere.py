"""Cohere: attention and MLP have the same normalized input, and both are added to it; neighbours rotate."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile


def describe(config: ConfigFile) -> ModelConfig:
    dense, bias = Dense(config, theta=500_000.0, tied=True), config.flag("attention_bias")
    config.only(use_qk_norm=False)  # of Command R+, whose heads have LayerNorms with weights of their own
    return dense.model(
        LayerKind(parallel=True, output_bias=bias),
        attention_bias=bias,
        interleaved=True,
        layer_norms=True,
        norm_biases=False,
        rms_norm_eps=config.number("layer_norm_eps", 1e-5),
        logits_scale=config.positive("logit_scale", 0.0625),
        # Command R says so how long its contexts may be, and 8,192 where others do.
        max_position_embeddings=config.size("model_max_length", dense.positions),
    )


ARCHITECTURE = Architecture(
    "CohereForCausalLM",
    "Command R, Aya 23, Aya Expanse",
    describe,
    example={"layer_norm_eps": 1e-5, "logit_scale": 0.25, "tie_word_embeddings": True},
)
