"""Reading: the bytes of a block are those that transformers would compute with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import xxhash
from safetensors.torch import load_file, save_file

from livescale.services.host import safetensors_files
from livescale.services.host.checkpoint import Checkpoint, open_checkpoint
from livescale.services.host.conversion import to_panels
from livescale.shared.messages.parameters import DType, Family, Layout, Manifest, Tensor
from livescale.shared.model.checkpoint import CheckpointError
from tests.checkpoints import FAMILIES, copy_checkpoint, tiny_checkpoint
from tests.host.spoil import rewrite_json

LAYOUTS: tuple[Layout, Layout] = "plain", "panels"
TORCH: dict[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def read(checkpoint: Checkpoint) -> tuple[Manifest, list[bytearray]]:
    # Filled with other bytes first, so that a gap that is not written shows.
    blocks = [bytearray(b"\xa5" * layout.size_bytes) for layout in checkpoint.layouts]
    checksums = [checkpoint.read_block(index, memoryview(block)) for index, block in enumerate(blocks)]
    return checkpoint.manifest(checksums), blocks


def tensor_of(block: bytearray, tensor: Tensor, dtype: DType) -> torch.Tensor:
    count = torch.Size(tensor.shape).numel()
    return torch.frombuffer(block, dtype=TORCH[dtype], count=count, offset=tensor.offset).view(tensor.shape)


def assert_as_transformers(directory: Path, dtype: DType) -> None:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=TORCH[dtype])
    expected = dict(model.named_parameters())
    manifest, blocks = read(open_checkpoint(directory, dtype))
    for block in manifest.blocks:
        for tensor in block.tensors:
            packed = tensor_of(blocks[block.index], tensor, dtype)
            assert torch.equal(packed, expected.pop(tensor.name)), tensor.name
    assert not expected


def store_as(directory: Path, dtype: torch.dtype) -> None:
    for file in directory.glob("*.safetensors"):
        save_file({name: tensor.to(dtype) for name, tensor in load_file(file).items()}, file, {"format": "pt"})


def test_matrices_can_be_read_into_panels_also_those_of_one_rank(tmp_path: Path) -> None:
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 640}
    config = transformers.LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2, **heads)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    for shards in (1, 2):
        (plain, rows), (panels, laid_out) = (
            read(open_checkpoint(tmp_path, "bfloat16", shards, layout)) for layout in LAYOUTS
        )
        assert plain.version != panels.version
        for block in panels.blocks:
            for tensor in block.tensors:
                expected, found = (
                    tensor_of(bytes_read[block.index], tensor, "bfloat16").view(torch.uint16).numpy()
                    for bytes_read in (rows, laid_out)
                )
                expected = to_panels(expected).reshape(expected.shape) if tensor.layout == "panels" else expected
                assert np.array_equal(found, expected), tensor.name


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_tensors_are_those_of_transformers_bit_for_bit(family: Family, dtype: DType) -> None:
    assert_as_transformers(tiny_checkpoint(family), dtype)


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_other_stored_dtypes_are_converted_as_transformers_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: torch.dtype, dtype: DType
) -> None:
    monkeypatch.setattr(safetensors_files, "SCRATCH_BYTES", 10_000)  # several pieces a tensor, the last one shorter
    directory = copy_checkpoint("llama", tmp_path)
    store_as(directory, stored)
    assert_as_transformers(directory, dtype)


@pytest.mark.parametrize("dtype", TORCH)
def test_checksums_cover_every_byte_gaps_included(dtype: DType) -> None:
    manifest, blocks = read(open_checkpoint(tiny_checkpoint("qwen2"), dtype))
    for block in manifest.blocks:
        data = blocks[block.index]
        assert block.size_bytes == len(data)
        assert block.checksum == xxhash.xxh3_64_intdigest(data)
        ends = [tensor.offset + torch.Size(tensor.shape).numel() * TORCH[dtype].itemsize for tensor in block.tensors]
        starts = [tensor.offset for tensor in block.tensors[1:]] + [block.size_bytes]
        assert not any(any(data[end:start]) for end, start in zip(ends, starts, strict=True))


def test_sizes_are_known_before_anything_is_read() -> None:
    checkpoint = open_checkpoint(tiny_checkpoint("llama"), "bfloat16")
    manifest, _ = read(checkpoint)
    assert checkpoint.size_bytes == manifest.size_bytes
    assert len(checkpoint.layouts) == checkpoint.config.num_hidden_layers + 2


def test_a_version_names_the_content_not_the_place(tmp_path: Path) -> None:
    original, _ = read(open_checkpoint(tiny_checkpoint("llama"), "bfloat16"))
    copied, _ = read(open_checkpoint(copy_checkpoint("llama", tmp_path), "bfloat16"))
    assert copied == original
    assert len(original.version) == 32


def test_another_dtype_configuration_or_parameter_is_another_version(tmp_path: Path) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    versions = {read(open_checkpoint(directory, dtype))[0].version for dtype in TORCH}
    rewrite_json(directory / "config.json", rms_norm_eps=1e-4)
    versions.add(read(open_checkpoint(directory, "bfloat16"))[0].version)
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-2] + b"\0\0")
    versions.add(read(open_checkpoint(directory, "bfloat16"))[0].version)
    assert len(versions) == 4


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_tensor_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    for dtype in TORCH:
        with pytest.raises(CheckpointError, match=rf"model\.layers\.1\.mlp\.up_proj\.weight holds NaN .* in {dtype}"):
            read(open_checkpoint(directory, dtype))


@pytest.mark.parametrize("bits", [0x7F7F_FFFF, 0x7FFF_FFFF], ids=["largest", "nan"])
def test_a_number_that_bfloat16_does_not_have_is_not_served_as_one(tmp_path: Path, bits: int) -> None:
    """The largest of float32 becomes infinite; bits of NaN could be rounded to those of a number."""
    directory = copy_checkpoint("qwen2", tmp_path)
    tensors = {name: tensor.float() for name, tensor in load_file(directory / "model.safetensors").items()}
    tensors["model.norm.weight"].view(torch.int32)[9] = bits
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight holds NaN or infinity in bfloat16"):
        read(open_checkpoint(directory, "bfloat16"))


def test_a_file_cut_after_it_was_checked_is_refused(tmp_path: Path) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    checkpoint = open_checkpoint(directory, "bfloat16")
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1_000])
    with pytest.raises(CheckpointError, match="changed while it was read"):
        read(checkpoint)


def test_a_file_removed_after_it_was_checked_is_refused(tmp_path: Path) -> None:
    directory = copy_checkpoint("qwen2", tmp_path)
    checkpoint = open_checkpoint(directory, "bfloat16")
    (directory / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read(checkpoint)


def test_a_buffer_of_another_size_is_a_mistake_of_the_caller() -> None:
    checkpoint = open_checkpoint(tiny_checkpoint("qwen2"), "bfloat16")
    with pytest.raises(ValueError, match="block 0 has"):
        checkpoint.read_block(0, memoryview(bytearray(10)))


@pytest.mark.parametrize(
    ("family", "name"), [("qwen2", "model.embed_tokens.weight"), ("gpt2", "transformer.wte.weight")]
)
def test_a_tied_head_that_is_repeated_must_be_the_embedding(family: Family, name: str, tmp_path: Path) -> None:
    directory = copy_checkpoint(family, tmp_path)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    embedding = tensors[name]
    original = read(open_checkpoint(directory, "bfloat16"))[0]
    save_file(tensors | {"lm_head.weight": embedding.clone()}, file)
    assert read(open_checkpoint(directory, "bfloat16"))[0] == original
    for other in (embedding * 2, embedding.float(), embedding[:-1].clone()):
        save_file(tensors | {"lm_head.weight": other}, file)
        with pytest.raises(CheckpointError, match=rf"differs from {name} .* tie_word_embeddings"):
            read(open_checkpoint(directory, "bfloat16"))
