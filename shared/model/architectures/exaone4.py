"""EXAONE 4: norms after attention and MLP, and of heads; where some layers have a window, the others do not rotate."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import DEFAULT_WINDOW, FULL, SLIDING, Architecture, Dense
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile

PATTERN = "sliding_window_pattern"


def describe(config: ConfigFile) -> ModelConfig:
    dense = Dense(config, eps=1e-5)
    is_hybrid = config.unless_null("sliding_window", DEFAULT_WINDOW) > 0
    pattern = _pattern(config)
    types = dense.layer_types(lambda layer: SLIDING if is_hybrid and pattern[layer % len(pattern)] == "L" else FULL)
    kind = LayerKind(head_norm="head", norms_before=False, norms_after=True)
    near, full = dense.windowed(kind), dense.still(kind) if is_hybrid else kind
    return dense.model(*(near if one == SLIDING else full for one in types))


def _pattern(config: ConfigFile) -> str:
    """The types of layers in turn, by their first letters: local and global."""
    said = config.get(PATTERN, 4, wanted=lambda value: isinstance(value, str | int), said="a number, or of L and G")
    pattern = said if isinstance(said, str) else "L" * (said - 1) + "G"
    if not pattern or pattern.strip("LG"):
        raise CheckpointError(f"{PATTERN} is {said!r}, must be a number of layers, or consist of L and G")
    return pattern


ARCHITECTURE = Architecture(
    "Exaone4ForCausalLM",
    "EXAONE 4",
    describe,
    renamed={
        "self_attn.output_layernorm": "post_attention_layernorm",
        "mlp.output_layernorm": "post_feedforward_layernorm",
    },
    example={"sliding_window": 100, "sliding_window_pattern": 2},
)
