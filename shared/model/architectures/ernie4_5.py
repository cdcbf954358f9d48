"""Ernie 4.5, its dense models: Llama whose heads rotate neighbours."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile


def describe(config: ConfigFile) -> ModelConfig:
    head_dim = int(config.unless_null("head_dim", 128))
    dense, bias = Dense(config, theta=500_000.0, tied=True, eps=1e-5, head_dim=head_dim), config.flag("use_bias")
    return dense.model(LayerKind(output_bias=bias, mlp_bias=bias), attention_bias=bias, interleaved=True)


ARCHITECTURE = Architecture(
    "Ernie4_5ForCausalLM", "ERNIE 4.5 (dense: 0.3B)", describe, example={"tie_word_embeddings": True}
)
