"""gpt-oss: layers with windows and without in turn, sinks, and experts with biases and a clamped SwiGLU."""

from msgspec.structs import replace

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import FULL, SLIDING, Architecture, Dense
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.experts import read_experts
from livescale.shared.model.declaration.rotation import Rotation

# What transformers takes where the file says nothing.
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4_096, "truncate": False}
UNSAID = ("experts_per_token", "initial_context_length")  # the same as other keys


def describe(config: ConfigFile) -> ModelConfig:
    dense, bias = Dense(config, theta=150_000.0, eps=1e-5), config.flag("attention_bias", True)
    for key in UNSAID:
        config.whole(key, 0)
    plain = LayerKind(output_bias=bias, sinks=True, experts=True)
    types = dense.layer_types(lambda layer: FULL if layer % 2 else SLIDING)
    window = dense.window(128)
    kinds = [replace(plain, window=window if one == SLIDING else 0) for one in types]
    experts = read_experts(config, 128, 4, dense.intermediate_size)
    alpha, limit = config.number("swiglu_alpha", 1.702), config.number("swiglu_limit", 7.0)
    if not 0 < alpha <= 1e3 or not 0 < limit <= 1e6:
        raise CheckpointError(f"swiglu_alpha and swiglu_limit are {alpha} and {limit}, must be above zero")
    experts = replace(experts, biased=True, swiglu_alpha=alpha, swiglu_limit=limit)
    return dense.model(*kinds, rotation=_rotation(dense), attention_bias=bias, experts=experts)


def _rotation(dense: Dense) -> Rotation:
    said = [dense.config.mapping(key) for key in ("rope_parameters", "rope_scaling")]
    return dense.rotations.read() if any(said) else dense.rotations.rotation(YARN)


ARCHITECTURE = Architecture(
    "GptOssForCausalLM",
    "gpt-oss 20B, 120B",
    describe,
    renamed={"mlp.gate": "mlp.router"},
    fuses_experts=True,
    example={
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "attention_bias": True,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "rope_parameters": {**YARN, "rope_theta": 150_000.0},
    },
)
