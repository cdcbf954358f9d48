"""Makes LoRA adapters with random parameters in peft's format, for demos, tests and benchmarks."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.model.architectures import architecture_of
from livescale.shared.model.checkpoint import load_model_config
from livescale.shared.model.declaration.adapter import (
    ADAPTER_CONFIG,
    ADAPTER_FILE,
    DOWN,
    MATRICES,
    STORED_PREFIX,
    UP,
    refuse_model,
)
from livescale.shared.model.declaration.tensors import Shapes, model_parameters
from livescale.shared.model.packed.form import WEIGHT

LAYERS = ".layers."
# Products of an adapter are about half as large as those of the matrix that it adds to, so that it changes tokens.
GAIN = 0.8


def make_adapter(
    directory: Path,
    model: Path,
    rank: int = 8,
    alpha: float = 16.0,
    matrices: Sequence[str] = MATRICES,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """Write an adapter of rank `rank` for the checkpoint in `model`: the same bytes for the same seed.

    `matrices` are the last parts of our names. Raises CheckpointError for a model that takes none, OSError where
    `directory` cannot be written.
    """
    config = load_model_config(model)
    refuse_model(config)
    tensors = {}
    for name, shape in _adapted(config, matrices).items():
        stem = STORED_PREFIX + name.removesuffix(WEIGHT)
        scale = alpha / rank
        tensors[stem + DOWN] = _noise(f"{seed} {stem} A", (rank, shape[1]), shape[1] ** -0.5).to(dtype)
        tensors[stem + UP] = _noise(f"{seed} {stem} B", (shape[0], rank), GAIN / scale / rank**0.5).to(dtype)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / ADAPTER_FILE, {"format": "pt"})
    modules = sorted({name.removesuffix(WEIGHT).rpartition(".")[2] for name in _adapted(config, matrices)})
    said = {**PEFT, "base_model_name_or_path": str(model), "r": rank, "lora_alpha": alpha, "target_modules": modules}
    (directory / ADAPTER_CONFIG).write_text(json.dumps(said, indent=2, sort_keys=True) + "\n")
    for file in (directory / ADAPTER_FILE, directory / ADAPTER_CONFIG):
        file.chmod(0o644)
    return directory


def _adapted(config: ModelConfig, matrices: Sequence[str]) -> Shapes:
    """The tensors of the checkpoint that lie where these matrices do, with their shapes."""
    sources = architecture_of(config).sources(config)
    ends = tuple(f".{one}{WEIGHT}" for one in matrices)
    names = [
        source.name
        for ours, source in sources.items()
        if LAYERS in ours and ".experts." not in ours and ours.endswith(ends)
    ]
    ours = {one.name: one.shape for block in model_parameters(config).values() for one in block}
    shapes: Shapes = {}
    for name, source in sources.items():
        if source.name in names:
            rows = max(shapes.get(source.name, [0])[0], source.start + source.rows)
            shapes[source.name] = [rows, ours[name][1]]
    return shapes


def _noise(name: str, shape: tuple[int, int], std: float) -> torch.Tensor:
    """Each tensor from a seed of its own, so that it depends on no other."""
    digest = hashlib.sha256(name.encode()).digest()
    chance = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return std * torch.randn(shape, generator=chance)


# What peft 0.17 writes of an adapter that is nothing but LoRA.
PEFT: dict[str, object] = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": None,
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_bias": False,
    "lora_dropout": 0.0,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "peft_version": "0.17.1",
    "qalora_group_size": 16,
    "rank_pattern": {},
    "revision": None,
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
}
