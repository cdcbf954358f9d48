"""The keys that encoders have in common, and those of the BERT family. Pure."""

from msgspec.structs import replace

from livescale.shared.messages.parameters import Activation, LayerKind, ModelConfig
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile

ACTIVATIONS: dict[str, Activation] = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
# Names of parameters, ours by the checkpoint's; each architecture puts its own name before those of the whole model.
NAMES = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.o_proj": "attention.output.dense",
    "self_attn.sum_layernorm": "attention.output.LayerNorm",
    "mlp.up_proj": "intermediate.dense",
    "mlp.down_proj": "output.dense",
    "mlp.sum_layernorm": "output.LayerNorm",
}


def encoder_names(base: str) -> dict[str, str]:
    """The names of an architecture that calls its model `base`."""
    return NAMES | {
        "model.embed_tokens": f"{base}.embeddings.word_embeddings",
        "model.embed_positions": f"{base}.embeddings.position_embeddings",
        "model.embed_types": f"{base}.embeddings.token_type_embeddings",
        "model.embed_norm": f"{base}.embeddings.LayerNorm",
        "model.norm": f"{base}.encoder.layer.{{last}}.output.LayerNorm",
    }


def describe_rows(config: ConfigFile, vocab_size: int, positions: int) -> ModelConfig:
    """What all encoders have in common: rows that see each other, and norms before the matrices of a layer. Raises
    CheckpointError."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    head_dim, rest = divmod(hidden, heads)
    if rest or head_dim % 2:
        raise CheckpointError(f"hidden_size {hidden} must be an even multiple of num_attention_heads, {heads}")
    activation = config.text("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise CheckpointError(f"hidden_act {activation[:80]!r} is not served; supported are {', '.join(ACTIVATIONS)}")
    kind = LayerKind(
        frequencies=(0.0,) * (head_dim // 2),  # heads do not rotate
        gated=False,
        activation=ACTIVATIONS[activation],
        output_bias=True,
        mlp_bias=True,
    )
    return ModelConfig(
        family=config.text("model_type"),
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=config.size("intermediate_size"),
        num_hidden_layers=config.size("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=head_dim,
        rms_norm_eps=config.number("layer_norm_eps", 1e-12),
        rope_theta=10_000.0,
        max_position_embeddings=positions,
        attention_bias=True,
        kinds=[kind],
        encodes=True,
    )


def describe_encoder(config: ConfigFile, position_offset: int = 0) -> ModelConfig:
    """The model that a configuration file describes; the first position has row `position_offset` of its table. Raises
    CheckpointError."""
    if config.text("position_embedding_type", "absolute") != "absolute":
        raise CheckpointError("position_embedding_type must be 'absolute'; use a checkpoint with such positions")
    positions = config.size("max_position_embeddings", 512) - position_offset
    if positions < 1:
        raise CheckpointError(f"max_position_embeddings must be more than {position_offset}")
    config.flag("tie_word_embeddings")  # of a head that is not there
    model = describe_rows(config, config.size("vocab_size"), positions)
    return replace(
        model,
        kinds=[replace(kind, norms_before=False, norms_sum=True) for kind in model.kinds],
        position_offset=position_offset,
        token_types=config.size("type_vocab_size", 2),
    )


def describe_after_padding(config: ConfigFile) -> ModelConfig:
    """The same of models whose first position follows the padding token's row, as RoBERTa's do."""
    return describe_encoder(config, config.whole("pad_token_id", 1) + 1)
