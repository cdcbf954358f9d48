"""Mixtral: Mistral whose MLP is experts; the weights of those that a row uses add up to 1."""

from livescale.shared.messages.parameters import LayerKind, ModelConfig
from livescale.shared.model.declaration.architecture import Architecture, Dense
from livescale.shared.model.declaration.config_file import ConfigFile
from livescale.shared.model.declaration.experts import read_experts


def describe(config: ConfigFile) -> ModelConfig:
    dense = Dense(config, theta=1_000_000.0, eps=1e-5)
    config.number("router_jitter_noise", 0.0)  # while training
    kind = LayerKind(window=dense.window(), experts=True)
    return dense.model(kind, experts=read_experts(config, 8, 2, dense.intermediate_size))


ARCHITECTURE = Architecture(
    "MixtralForCausalLM",
    "Mixtral 8x7B, 8x22B",
    describe,
    renamed={
        "mlp.gate": "block_sparse_moe.gate",
        "mlp.experts.*.gate_proj": "block_sparse_moe.experts.*.w1",
        "mlp.experts.*.down_proj": "block_sparse_moe.experts.*.w2",
        "mlp.experts.*.up_proj": "block_sparse_moe.experts.*.w3",
    },
    example={"num_local_experts": 8, "num_experts_per_tok": 2},
)
