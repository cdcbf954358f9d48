"""The keys that decoders with learned positions and LayerNorms have in common: GPT-2 and what came of it. Pure."""

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from livescale.shared.messages.parameters import Activation, LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import MOST_LAYERS
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile

ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}


def describe_learned(
    config: ConfigFile,
    sizes: Mapping[str, str],
    *,
    intermediate_size: int | None = None,
    activation: str,
    eps: float,
    bias: bool = True,
    position_offset: int = 0,
    scales: Sequence[float] = (),
) -> ModelConfig:
    """The model that a configuration file describes, where `sizes` has the file's names of sizes by those of Llama's.

    `activation` and, if there is one, `intermediate_size` are what transformers takes where the file says none. The
    first position has row `position_offset` of its table. `scales` are the factors of scores of each layer; without
    them it is 1 / sqrt(head_dim). Raises CheckpointError.
    """

    def key(name: str) -> str:
        return sizes.get(name, name)

    def size(name: str, *default: int) -> int:
        return config.size(key(name), *default)

    hidden, heads, layers = size("hidden_size"), size("num_attention_heads"), size("num_hidden_layers")
    _check_sizes(key, hidden, heads, layers)
    kind = _layer_kind(config, hidden // heads, activation, bias)
    each = [replace(kind, attention_scale=scale) for scale in scales]
    distinct = list(dict.fromkeys(each)) or [kind]
    return ModelConfig(
        family=config.text("model_type"),
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=size("intermediate_size", *([] if intermediate_size is None else [intermediate_size])),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        rms_norm_eps=eps,
        rope_theta=10_000.0,
        max_position_embeddings=size("max_position_embeddings"),
        tie_word_embeddings=config.flag("tie_word_embeddings", True),
        attention_bias=bias,
        kinds=distinct,
        layer_kinds=[distinct.index(one) for one in each] if len(distinct) > 1 else [],
        layer_norms=True,
        learned_positions=True,
        position_offset=position_offset,
    )


def _check_sizes(key: Callable[[str], str], hidden: int, heads: int, layers: int) -> None:
    if hidden % (2 * heads):
        raise CheckpointError(
            f"{key('hidden_size')} {hidden} must be an even multiple of {key('num_attention_heads')}, {heads}; "
            "repair or download the file again"
        )
    if layers > MOST_LAYERS:
        raise CheckpointError(f"{key('num_hidden_layers')} is {layers}, must be at most {MOST_LAYERS}")


def _layer_kind(config: ConfigFile, head_dim: int, activation: str, bias: bool) -> LayerKind:
    said = config.text("activation_function", activation)
    if said not in ACTIVATIONS:
        raise CheckpointError(
            f"activation_function {said[:80]!r} is not served; supported are {', '.join(ACTIVATIONS)}"
        )
    return LayerKind(
        frequencies=(0.0,) * (head_dim // 2),  # heads do not rotate
        gated=False,
        activation=ACTIVATIONS[said],
        output_bias=bias,
        mlp_bias=bias,
    )
