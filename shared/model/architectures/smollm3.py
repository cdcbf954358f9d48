"""SmolLM3: Llama in which every fourth layer does not rotate."""

from msgspec.structs import replace

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import FULL, SLIDING, Architecture, Dense
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile


def describe(config: ConfigFile) -> ModelConfig:
    dense, bias = Dense(config, tied=True, theta=2_000_000.0), config.flag("attention_bias")
    kind = LayerKind(output_bias=bias, mlp_bias=config.flag("mlp_bias"))
    interval, use_windows = config.size("no_rope_layer_interval", 4), config.flag("use_sliding_window")
    config.whole("max_window_layers", 0)  # of Qwen2: its files have it, and nothing goes by it
    rotates = config.wholes("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(dense.layers)]
    if len(rotates) != dense.layers:
        raise CheckpointError(f"no_rope_layers has {len(rotates)} for {dense.layers} layers")
    types = dense.layer_types(lambda layer: FULL if rotates[layer] or not use_windows else SLIDING)
    window = dense.window()
    kinds = []
    for layer, type in enumerate(types):
        own = replace(kind, window=window if use_windows and type == SLIDING else 0)
        kinds.append(own if rotates[layer] else dense.still(own))
    return dense.model(*kinds, attention_bias=bias)


ARCHITECTURE = Architecture("SmolLM3ForCausalLM", "SmolLM3", describe, example={"no_rope_layer_interval": 3})
