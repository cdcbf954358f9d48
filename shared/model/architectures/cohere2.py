"""Cohere 2: attention and MLP have the same normalized input, and both are added to it; layers without a window do not
rotate."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import FULL, SLIDING, Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile

# What published files say besides, and what alone is served of it.
ALWAYS: dict[str, bool | str] = {
    "use_parallel_block": True,
    "use_gated_activation": True,
    "use_embedding_sharing": True,
    "use_qk_norm": False,
    "order_of_interleaved_layers": "local_attn_first",
    "position_embedding_type": "rope_gptj",
}


def describe(config: ConfigFile) -> ModelConfig:
    dense, bias = Dense(config, tied=True), config.flag("attention_bias")
    config.only(**ALWAYS)
    config.flag("use_parallel_embedding")  # how it was trained
    config.number("rotary_pct", 1.0)
    every = config.size("layer_switch", config.size("sliding_window_pattern", 4))
    kind = LayerKind(parallel=True, output_bias=bias)
    near, full = dense.windowed(kind), dense.still(kind)
    types = dense.layer_types(lambda layer: SLIDING if (layer + 1) % every else FULL)
    return dense.model(
        *(near if one == SLIDING else full for one in types),
        attention_bias=bias,
        interleaved=True,
        layer_norms=True,
        norm_biases=False,
        rms_norm_eps=config.number("layer_norm_eps", 1e-5),
        logits_scale=config.positive("logit_scale", 0.0625),
    )


ARCHITECTURE = Architecture(
    "Cohere2ForCausalLM",
    "Command R7B, Command A",
    describe,
    example={"layer_norm_eps": 1e-5, "logit_scale": 0.25, "sliding_window": 100, "tie_word_embeddings": True},
)
