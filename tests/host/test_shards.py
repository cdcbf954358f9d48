"""A checkpoint that is read for several ranks."""

from pathlib import Path

import pytest
import torch

from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.parameters import block_tensors
from livescale.shared.messages.parameters import DType
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.model.sharding import find_shard_slice
from tests.checkpoints import tiny_checkpoint

Tensors = dict[str, torch.Tensor]


def _read(directory: Path, dtype: DType, shards: int) -> list[Tensors]:
    """Read the tensors of each rank."""
    checkpoint = open_checkpoint(directory, dtype, shards)
    blocks = [memoryview(bytearray(layout.size_bytes)) for layout in checkpoint.layouts]
    manifest = checkpoint.manifest([checkpoint.read_block(index, block) for index, block in enumerate(blocks)])
    ranks: list[Tensors] = [{} for _ in range(shards)]
    for index, (block, buffer) in enumerate(zip(manifest.blocks, blocks, strict=True)):
        ranks[index * shards // len(blocks)] |= block_tensors(block, buffer, dtype)
    return ranks


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_ranks_parts_put_together_are_the_model(dtype: DType) -> None:
    (whole,), parts = _read(tiny_checkpoint("qwen2"), dtype, 1), _read(tiny_checkpoint("qwen2"), dtype, 2)
    checkpoint = open_checkpoint(tiny_checkpoint("qwen2"), dtype)
    for name, tensor in whole.items():
        for shard, part in enumerate(parts):
            cut = find_shard_slice(checkpoint.cuts[name], checkpoint.config, shard, 2)
            expected = tensor if cut is None else tensor.narrow(cut.dimension, cut.start, cut.stop - cut.start)
            assert torch.equal(part[name], expected), (name, shard)


def test_columns_are_the_same_however_many_rows_are_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = _read(tiny_checkpoint("qwen2"), "bfloat16", 2)
    monkeypatch.setattr("livescale.services.host.safetensors_files.SCRATCH_BYTES", 1_000)
    for ours, theirs in zip(at_once, _read(tiny_checkpoint("qwen2"), "bfloat16", 2), strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_model_has_another_version_for_another_number_of_ranks() -> None:
    versions = set()
    for shards in (1, 2):
        checkpoint = open_checkpoint(tiny_checkpoint("qwen2"), "float32", shards)
        versions.add(checkpoint.manifest([0] * len(checkpoint.layouts)).version)
    assert len(versions) == 2


def test_a_number_of_ranks_that_does_not_divide_is_refused_with_the_directory() -> None:
    with pytest.raises(CheckpointError, match=r"qwen2: tensor_parallel_size is 3 and .* this model can have 1, 2"):
        open_checkpoint(tiny_checkpoint("qwen2"), "float32", 3)
