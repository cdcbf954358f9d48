"""GPT-2: LayerNorms before attention and MLP, learned positions, and matrices that are stored as `[in, out]`."""

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.declaration.architecture import Architecture
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.learned_positions import describe_learned

SIZES = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
}


def describe(config: ConfigFile) -> ModelConfig:
    if config.flag("add_cross_attention"):
        raise CheckpointError("add_cross_attention is true, which is not served; use a decoder that stands alone")
    hidden, heads = config.size("n_embd"), config.size("n_head")
    scale = (hidden // heads) ** -0.5 if config.flag("scale_attn_weights", True) else 1.0
    scales = [scale] * config.size("n_layer")
    if config.flag("scale_attn_by_inverse_layer_idx"):
        scales = [scale / (layer + 1) for layer, scale in enumerate(scales)]
    return describe_learned(
        config,
        SIZES,
        intermediate_size=4 * hidden,
        activation="gelu_new",
        eps=config.number("layer_norm_epsilon", 1e-5),
        scales=scales,
    )


ARCHITECTURE = Architecture(
    "GPT2LMHeadModel",
    "GPT-2, DistilGPT2",
    describe,
    renamed={
        "model.embed_tokens": "transformer.wte",
        "model.embed_positions": "transformer.wpe",
        "input_layernorm": "ln_1",
        "self_attn.o_proj": "attn.c_proj",
        "post_attention_layernorm": "ln_2",
        "mlp.up_proj": "mlp.c_fc",
        "mlp.down_proj": "mlp.c_proj",
        "model.norm": "transformer.ln_f",
    },
    joined={"attn.c_attn": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
    layers="transformer.h.",
    transposes=True,
    sizes=SIZES,
    example={"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
)
