"""An adapter's block: the numbers of its file, B with the factor in it, rounded once."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from livescale.load.make_adapter import make_adapter
from livescale.services.host.adapter import AdapterCheckpoint, open_adapter
from livescale.shared.messages.parameters import Manifest
from livescale.shared.model.checkpoint import CheckpointError, load_model_config
from livescale.shared.model.declaration.adapter import ADAPTER_CONFIG, ADAPTER_FILE, DOWN, STORED_PREFIX, UP
from tests.checkpoints import tiny_checkpoint

ALPHA, RANK = 10.0, 6


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_adapter(tmp_path / "adapter", tiny_checkpoint("llama"), RANK, ALPHA)


def opened(directory: Path) -> AdapterCheckpoint:
    return open_adapter(directory, load_model_config(tiny_checkpoint("llama")), "bfloat16")


def read(directory: Path) -> tuple[Manifest, bytearray]:
    adapter = opened(directory)
    block = bytearray(b"\xa5" * adapter.size_bytes)
    return adapter.manifest([adapter.read_block(0, memoryview(block))]), block


def rewrite(directory: Path, name: str, changed: torch.Tensor) -> None:
    tensors = load_file(directory / ADAPTER_FILE)
    save_file({**tensors, name: changed}, directory / ADAPTER_FILE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_block_has_the_files_numbers_and_the_factor(tmp_path: Path, dtype: torch.dtype) -> None:
    directory = make_adapter(tmp_path / "adapter", tiny_checkpoint("llama"), RANK, ALPHA, dtype=dtype)
    manifest, block = read(directory)
    stored = load_file(directory / ADAPTER_FILE)
    assert len(manifest.blocks[0].tensors) == len(stored)
    for tensor in manifest.blocks[0].tensors:
        count = int(np.prod(tensor.shape))
        found = torch.frombuffer(block, dtype=torch.bfloat16, count=count, offset=tensor.offset).view(tensor.shape)
        factor = ALPHA / RANK if tensor.name.endswith(UP) else 1.0
        expected = (stored[STORED_PREFIX + tensor.name].float() * torch.tensor(factor)).bfloat16()
        assert torch.equal(found, expected), tensor.name


def test_the_version_is_that_of_the_content(directory: Path, tmp_path: Path) -> None:
    versions = [read(directory)[0].version]
    for seed in (0, 1):
        versions.append(
            read(make_adapter(tmp_path / f"{seed}", tiny_checkpoint("llama"), RANK, ALPHA, seed=seed))[0].version
        )
    assert versions[0] == versions[1] != versions[2]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3.4e38])
def test_numbers_that_are_not_finite_are_refused(directory: Path, value: float) -> None:
    name = next(name for name in load_file(directory / ADAPTER_FILE) if name.endswith(DOWN))
    changed = load_file(directory / ADAPTER_FILE)[name].clone()
    changed[0, 0] = value
    rewrite(directory, name, changed)
    with pytest.raises(CheckpointError, match="NaN or infinity"):
        read(directory)


def test_files_that_are_missing_or_of_another_kind_are_refused(directory: Path) -> None:
    said = json.loads((directory / ADAPTER_CONFIG).read_text())
    (directory / ADAPTER_CONFIG).write_text(json.dumps({**said, "use_dora": True}))
    with pytest.raises(CheckpointError, match=f"{ADAPTER_CONFIG}: use_dora"):
        opened(directory)
    (directory / ADAPTER_CONFIG).write_text(json.dumps(said))
    rewrite(directory, "base_model.model.model.embed_tokens.lora_embedding_A", torch.zeros(2, 2))
    with pytest.raises(CheckpointError, match="lora_embedding_A is of no matrix"):
        opened(directory)
    (directory / ADAPTER_FILE).rename(directory / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"convert adapter_model\.bin"):
        opened(directory)
    (directory / ADAPTER_CONFIG).unlink()
    with pytest.raises(CheckpointError, match=ADAPTER_CONFIG):
        opened(directory)


def test_whole_numbers_are_refused(directory: Path) -> None:
    name = next(name for name in load_file(directory / ADAPTER_FILE) if name.endswith(DOWN))
    rewrite(directory, name, torch.zeros_like(load_file(directory / ADAPTER_FILE)[name], dtype=torch.int8))
    with pytest.raises(CheckpointError, match="I8"):
        opened(directory)


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    directory = make_adapter(tmp_path / "adapter", tiny_checkpoint("qwen2"), RANK, ALPHA)
    with pytest.raises(CheckpointError, match="the adapter was trained for"):
        opened(directory)
