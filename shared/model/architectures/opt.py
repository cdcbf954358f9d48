"""OPT: LayerNorms before attention and MLP, ReLU, and learned positions that are counted from 2 on."""

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.declaration.architecture import Architecture
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.learned_positions import describe_learned

SIZES = {"intermediate_size": "ffn_dim"}
OTHERS = "use another size, such as OPT-125M or OPT-1.3B"


def describe(config: ConfigFile) -> ModelConfig:
    hidden, width = config.size("hidden_size"), config.size("word_embed_proj_dim", config.size("hidden_size"))
    if width != hidden:
        raise CheckpointError(
            f"word_embed_proj_dim is {width} and hidden_size {hidden}: embeddings that a matrix widens are not served; "
            f"{OTHERS}"
        )
    if not config.flag("do_layer_norm_before", True) or config.flag("_remove_final_layer_norm"):
        raise CheckpointError(
            "do_layer_norm_before is false or _remove_final_layer_norm is true: models without a norm before the head "
            f"are not served; {OTHERS}"
        )
    if not config.flag("layer_norm_elementwise_affine", True):
        raise CheckpointError(f"layer_norm_elementwise_affine is false: norms without weights are not served; {OTHERS}")
    return describe_learned(
        config, SIZES, activation="relu", eps=1e-5, bias=config.flag("enable_bias", True), position_offset=2
    )


ARCHITECTURE = Architecture(
    "OPTForCausalLM",
    "OPT (all but 350M)",
    describe,
    renamed={
        "model.embed_tokens": "model.decoder.embed_tokens",
        "model.embed_positions": "model.decoder.embed_positions",
        "input_layernorm": "self_attn_layer_norm",
        "self_attn.o_proj": "self_attn.out_proj",
        "post_attention_layernorm": "final_layer_norm",
        "mlp.up_proj": "fc1",
        "mlp.down_proj": "fc2",
        "model.norm": "model.decoder.final_layer_norm",
    },
    layers="model.decoder.layers.",
    sizes=SIZES,
    example={"activation_function": "relu", "tie_word_embeddings": True},
)
