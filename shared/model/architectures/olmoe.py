"""OLMoE: all layers have experts, and all heads of a row are normalized at once."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile
from livescale.shared.model.declaration.experts import read_experts


def describe(config: ConfigFile) -> ModelConfig:
    dense, bias = Dense(config, eps=1e-5), config.flag("attention_bias")
    experts = read_experts(config, 64, 8, dense.intermediate_size, normalized=config.flag("norm_topk_prob"))
    kind = LayerKind(head_norm="row", output_bias=bias, experts=True)
    return dense.model(kind, attention_bias=bias, experts=experts)


ARCHITECTURE = Architecture(
    "OlmoeForCausalLM", "OLMoE", describe, example={"num_experts": 64, "num_experts_per_tok": 8}
)
