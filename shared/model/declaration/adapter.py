"""LoRA adapters (Hu et al.) in peft's format: what adapter_config.json says, and which tensors an adapter has. Pure.

The product of a matrix and a row is added to by B times (A times the row), times a factor. What would be computed
otherwise than so is refused by name.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.declaration.architecture import Architecture
from livescale.shared.model.declaration.config_file import CheckpointError, ConfigFile
from livescale.shared.model.declaration.tensors import Shapes, layer_parameters
from livescale.shared.model.packed.form import WEIGHT

LARGEST_RANK = 256
ADAPTER_CONFIG, ADAPTER_FILE = "adapter_config.json", "adapter_model.safetensors"
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
STORED_PREFIX = "base_model.model."
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PLAIN = "train the adapter without it, or merge it into a checkpoint of its own"
# What changes more than the products of matrices, and what peft says where it does not.
UNSERVED: Mapping[str, Sequence[object]] = {
    "use_dora": (False,),
    "use_qalora": (False,),
    "use_bdlora": (False, None),
    "lora_bias": (False,),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "modules_to_save": ([],),
    "layer_replication": ([],),
    "trainable_token_indices": ([], {}),
    "target_parameters": ([],),
    "alora_invocation_tokens": ([],),
    "rank_pattern": ({},),
    "alpha_pattern": ({},),
    "arrow_config": ({},),
    "velora_config": ({},),
    "monteclora_config": ({},),
}
# How it was trained; which layers and matrices it has is seen from its tensors.
HARMLESS = {
    *("auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "lora_ga_config"),
    *(
        "exclude_modules",
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
    ),
    *("lora_dropout", "megatron_config", "megatron_core", "peft_version", "qalora_group_size", "revision"),
    *("runtime_config", "task_type", "target_modules"),
}


@dataclass(frozen=True)
class AdapterConfig:
    """What the engine must know of an adapter: the rank of its products and their factor."""

    rank: int
    scale: float


def read_adapter_config(values: Mapping[str, Any]) -> AdapterConfig:
    """What the content of adapter_config.json says. Raises CheckpointError for what is not served, by name."""
    read = ConfigFile({key: value for key, value in values.items() if key not in HARMLESS})
    kind = read.text("peft_type")
    if kind != "LORA":
        raise CheckpointError(f"peft_type is {kind[:80]!r}; only LORA is served: {PLAIN}")
    for key, off in UNSERVED.items():
        if values.get(key) is not None and values[key] not in off:
            raise CheckpointError(f"{key} is {str(values[key])[:80]!r}, which is not served; {PLAIN}")
        read.get(key, None, wanted=lambda value: True, said="")
    rank, alpha = read.size("r"), read.positive("lora_alpha")
    if rank > LARGEST_RANK:
        raise CheckpointError(f"r is {rank}, at most {LARGEST_RANK} is served; train the adapter with a lower rank")
    root = read.flag("use_rslora")
    read.refuse_unread()
    return AdapterConfig(rank, alpha / rank**0.5 if root else alpha / rank)


@dataclass(frozen=True)
class AdaptedMatrix:
    """One of our matrices with the two tensors that it gets, and where these lie in an adapter's file.

    A is stored as `down`, all of it. B are `rows` rows of the tensor `up` from row `start` on; `order` is that of a
    head's numbers, as in `Source`.
    """

    name: str
    down: str
    up: str
    start: int
    rows: int
    inputs: int
    order: tuple[int, ...] = ()


def adapted_matrices(
    config: ModelConfig, architecture: Architecture, stored: Mapping[str, Sequence[int]], rank: int
) -> list[AdaptedMatrix]:
    """The matrices that an adapter changes, in our order. `stored` has the shapes of its tensors by their names.

    Raises CheckpointError where they do not fit the model.
    """
    refuse_model(config)
    found: list[AdaptedMatrix] = []
    expected: Shapes = {}
    sources = architecture.sources(config)
    for layer in range(config.num_hidden_layers):
        for parameter in layer_parameters(config, layer):
            if not parameter.name.endswith(tuple(f".{one}{WEIGHT}" for one in MATRICES)) or len(parameter.shape) != 2:
                continue
            source = sources[parameter.name]
            down, up = (STORED_PREFIX + source.name.removesuffix(WEIGHT) + part for part in (DOWN, UP))
            rows, inputs = parameter.shape
            if down in stored or up in stored:
                name = parameter.name.removesuffix(WEIGHT)
                found.append(AdaptedMatrix(name, down, up, source.start, rows, inputs, source.order))
                known = expected.get(up, [0])[0]
                expected |= {down: [rank, inputs], up: [max(known, source.start + rows), rank]}
    _check_shapes(expected, stored)
    if not found:
        raise CheckpointError("has no tensors: it changes nothing; give a trained adapter")
    return found


def refuse_model(config: ModelConfig) -> None:
    """Raises CheckpointError for a model that takes no adapters."""
    if config.encodes or config.pooling != "none":
        raise CheckpointError("adapters of models that make vectors are not served; merge it into the checkpoint")
    if config.latent is not None:
        raise CheckpointError("adapters of models with latent attention are not served; merge it into the checkpoint")


def _check_shapes(expected: Shapes, stored: Mapping[str, Sequence[int]]) -> None:
    strange = sorted(stored.keys() - expected.keys())
    if strange:
        raise CheckpointError(f"{strange[0][:200]} is {_why_not(strange[0])}")
    for name, shape in expected.items():
        if name not in stored:
            raise CheckpointError(f"{name} is missing; save the adapter again")
        if list(stored[name]) != shape:
            raise CheckpointError(
                f"{name} has the shape {list(stored[name])}, model and r make it {shape}; name the model that the "
                "adapter was trained for"
            )


def _why_not(name: str) -> str:
    """Why this tensor is not one of those that are served, and what to do."""
    part = name.removeprefix(STORED_PREFIX)
    if "lora_magnitude_vector" in part:
        return f"of DoRA, which is not served; {PLAIN}"
    if ".experts" in part or part.endswith((f"mlp.gate{DOWN}", f"mlp.gate{UP}")):
        return f"of experts or their router, whose adapters are not served; {PLAIN}"
    if re.search(r"\.layers\.\d+\.", part) and part.endswith((DOWN, UP)):
        return f"of a matrix or a layer that this model does not have; its adapters may change {', '.join(MATRICES)}"
    return f"of no matrix of a layer: only adapters of {', '.join(MATRICES)} are served; {PLAIN}"


def matrix_outputs(config: ModelConfig, layer: int) -> dict[str, int]:
    """How many outputs each matrix of a layer has here, by its name in the layer."""
    prefix = f"model.layers.{layer}."
    return {one.name.removeprefix(prefix).removesuffix(WEIGHT): one.shape[0] for one in layer_parameters(config, layer)}
