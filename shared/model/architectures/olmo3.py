"""OLMo 3: OLMo 2 with windows in three of four layers; only the others' rotation is scaled."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import FULL, SLIDING, Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile


def describe(config: ConfigFile) -> ModelConfig:
    dense, bias = Dense(config, eps=1e-5, theta=500_000.0), config.flag("attention_bias")
    rotation = dense.rotations.read_of(FULL)
    full = LayerKind(head_norm="row", norms_before=False, norms_after=True, output_bias=bias)
    near = dense.turning(dense.windowed(full), dense.rotations.read_of(SLIDING, is_scaled=False))
    types = dense.layer_types(lambda layer: FULL if layer % 4 == 3 else SLIDING)
    kinds = [near if one == SLIDING else full for one in types]
    return dense.model(*kinds, rotation=rotation, attention_bias=bias)


ARCHITECTURE = Architecture(
    "Olmo3ForCausalLM",
    "OLMo 3",
    describe,
    renamed={
        "self_attn.output_layernorm": "post_attention_layernorm",
        "mlp.output_layernorm": "post_feedforward_layernorm",
    },
    example={
        "sliding_window": 100,
        "rope_parameters": {one: {"rope_type": "default", "rope_theta": 500_000.0} for one in (FULL, SLIDING)},
    },
)
