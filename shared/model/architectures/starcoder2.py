"""StarCoder2: LayerNorms and an MLP without a gate as in GPT-2, with heads that rotate and a window as in Mistral."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile

WHILE_TRAINING = ("residual_dropout", "embedding_dropout")


def describe(config: ConfigFile) -> ModelConfig:
    for key in WHILE_TRAINING:
        config.number(key, 0.0)
    config.only(mlp_type="default", norm_type="layer_norm")  # published files say that they are so
    dense = Dense(config, activations={"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}, tied=True)
    bias = config.flag("use_bias", True)
    kind = LayerKind(window=dense.window(), gated=False, activation=dense.activation, output_bias=bias, mlp_bias=bias)
    return dense.model(kind, attention_bias=bias, layer_norms=True, rms_norm_eps=config.number("norm_epsilon", 1e-5))


ARCHITECTURE = Architecture(
    "Starcoder2ForCausalLM",
    "StarCoder2 3B, 7B, 15B",
    describe,
    renamed={"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"},
    example={
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": 1e-5,
        "sliding_window": 100,
        "tie_word_embeddings": True,
    },
)
