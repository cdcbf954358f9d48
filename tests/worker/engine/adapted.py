"""Adapters of the small models, and transformers' models with these adapters merged in float32."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file
from transformers.pytorch_utils import Conv1D

from livescale.load.make_adapter import make_adapter
from livescale.services.host.adapter import open_adapter
from livescale.services.worker.engine.engine import TorchEngine
from livescale.shared.messages.parameters import DType, Manifest
from livescale.shared.messages.requests import AdapterUse
from livescale.shared.model.declaration.adapter import ADAPTER_CONFIG, ADAPTER_FILE, DOWN, MATRICES, STORED_PREFIX, UP
from tests.worker.engine.models import checkpointed, reference, saved

Made = tuple[Manifest, bytearray]


@contextmanager
def stored_adapter(name: str, seed: int, rank: int = 8, **fields: Any) -> Iterator[Path]:
    """A directory with an adapter of the model `name` in peft's format; `fields` are keys of adapter_config.json."""
    with TemporaryDirectory() as made:
        directory = Path(made) / "adapter"
        matrices = fields.pop("matrices", MATRICES)
        make_adapter(directory, saved(name), rank, alpha=rank * 1.5, matrices=matrices, seed=seed)
        path = directory / ADAPTER_CONFIG
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        yield directory


@cache
def adapter(name: str, seed: int, dtype: DType, rank: int = 8, **fields: Any) -> Made:
    """An adapter as a host reads it: its manifest and the bytes of its block."""
    with stored_adapter(name, seed, rank, **fields) as directory:
        opened = open_adapter(directory, checkpointed(name, dtype).manifest.config, dtype)
        block = bytearray(opened.size_bytes)
        return opened.manifest([opened.read_block(0, memoryview(block))]), block


def add(engine: TorchEngine, made: Made) -> AdapterUse:
    """Add an adapter to an engine. Returns how a request names it."""
    manifest, block = made
    engine.add_adapter(manifest, memoryview(block))
    return AdapterUse(name=manifest.version, version=manifest.version)


@cache
def products(name: str, seed: int, rank: int = 8, **fields: Any) -> dict[str, torch.Tensor]:
    """What an adapter adds to matrices of the model, by their names, in float32."""
    with stored_adapter(name, seed, rank, **fields) as directory:
        said = json.loads((directory / ADAPTER_CONFIG).read_text())
        scale = said["lora_alpha"] / (rank**0.5 if said["use_rslora"] else rank)
        tensors = load_file(directory / ADAPTER_FILE)
    stems = [key.removesuffix(DOWN) for key in tensors if key.endswith(DOWN)]
    return {stem.removeprefix(STORED_PREFIX): scale * (tensors[stem + UP] @ tensors[stem + DOWN]) for stem in stems}


@contextmanager
def merged(name: str, seed: int, rank: int = 8, **fields: Any) -> Iterator[None]:
    """Have transformers' model with this adapter's products added to its matrices, as peft merges it."""
    modules = dict(reference(name, "float32").named_modules())  # of the very one whose logits are compared
    before: dict[torch.nn.Module, Any] = {}
    for stem, added in products(name, seed, rank, **fields).items():
        module = modules[stem]
        before[module] = module.weight
        changed = before[module].detach() + (added.T if isinstance(module, Conv1D) else added)
        module.weight = torch.nn.Parameter(changed, requires_grad=False)
    try:
        yield
    finally:
        for module, weight in before.items():
            module.weight = weight
