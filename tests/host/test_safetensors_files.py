"""A checkpoint that is not whole is refused before anything is read, with its file and a remedy."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from livescale.services.host.checkpoint import open_checkpoint
from livescale.shared.model.checkpoint import CheckpointError
from tests.checkpoints import copy_checkpoint
from tests.host.spoil import Header, rewrite_header, rewrite_json, weight_map

UP = "model.layers.0.mlp.up_proj.weight"


def refused(directory: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(directory, "bfloat16")
    message = str(caught.value)
    assert str(directory) in message
    assert "; " in message, "no remedy"
    return message


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return copy_checkpoint("qwen2", tmp_path)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return copy_checkpoint("llama", tmp_path)


def test_a_directory_without_parameters_is_refused(single: Path) -> None:
    (single / "model.safetensors").unlink()
    assert "neither model.safetensors nor model.safetensors.index.json" in refused(single)
    (single / "model.gguf").touch()
    assert "GGUF files are not served; give the checkpoint that they were made from" in refused(single)


def test_pickled_parameters_are_refused_with_the_way_to_convert(single: Path) -> None:
    (single / "model.safetensors").rename(single / "pytorch_model.bin")
    assert "convert its *.bin files" in refused(single)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors: cannot be read" in refused(sharded)


@pytest.mark.parametrize("kept", [0, 5, 8, 300])
def test_a_file_cut_in_its_header_is_refused(single: Path, kept: int) -> None:
    file = single / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "model.safetensors: truncated" in refused(single)


@pytest.mark.parametrize("cut", [1, 100_000])
def test_a_file_cut_in_its_tensors_is_refused(single: Path, cut: int) -> None:
    file = single / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-cut])
    assert "truncated or damaged" in refused(single)


def test_a_file_of_another_kind_is_refused(single: Path) -> None:
    (single / "model.safetensors").write_bytes(b"\x80\x02}q\x00." * 1_000)
    assert "not a safetensors file" in refused(single)


def test_a_header_that_is_not_json_is_refused(single: Path) -> None:
    file = single / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[8:20] = b"x" * 12
    file.write_bytes(data)
    assert "malformed safetensors header" in refused(single)


def _set(field: str, value: Any) -> Callable[[Header], None]:
    return lambda header: header[UP].update({field: value})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("dtype", "U16"), f"{UP} is U16; supported are F32, BF16, F16"),
        (_set("dtype", "F8_E4M3"), "F8_E4M3, which is 61440 bytes"),
        (_set("dtype", "F32"), "but its offsets are"),
        (_set("shape", [192, 319]), "but its offsets are"),
        (_set("shape", [-320, -192]), "but its offsets are"),
        (_set("shape", "all"), "malformed safetensors header"),
        (_set("data_offsets", [0]), "malformed safetensors header"),
        (_set("shape", [192, 320]), f"{UP} has shape [192, 320], config.json makes it [320, 192]"),
        (
            lambda header: {k: v for k, v in header.items() if k != UP},
            f"tensors missing from the safetensors files: {UP}",
        ),
        (
            lambda header: header | {"model.layers.0.self_attn.q_norm.weight": header["model.norm.weight"]},
            "does not use: model.layers.0.self_attn.q_norm.weight",
        ),
    ],
)
def test_a_header_that_does_not_fit_the_model_is_refused(
    single: Path, change: Callable[[Header], Header | None], said: str
) -> None:
    rewrite_header(single / "model.safetensors", change)
    assert said in refused(single)


def test_many_missing_tensors_are_counted(single: Path) -> None:
    rewrite_json(single / "config.json", num_hidden_layers=4)
    assert "and 7 more" in refused(single)


def test_frequencies_that_old_checkpoints_carry_are_ignored(single: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite_header(single / "model.safetensors", lambda header: header | {name: header["model.norm.weight"]})
    assert name not in open_checkpoint(single, "bfloat16").stored


@pytest.mark.parametrize(
    "name",
    [
        "../model-00001-of-00003.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "sub\\model.safetensors",
        "..",
        "",
        "tokenizer.json",
    ],
)
def test_an_index_that_points_elsewhere_is_refused(sharded: Path, name: str) -> None:
    rewrite_json(sharded / "model.safetensors.index.json", weight_map=weight_map(sharded) | {UP: name})
    assert f"index.json: {name!r} is not the name of a safetensors file beside it" in refused(sharded)


def test_an_index_that_names_the_wrong_shard_is_refused(sharded: Path) -> None:
    names = weight_map(sharded)
    wrong = next(name for name in names.values() if name != names[UP])
    rewrite_json(sharded / "model.safetensors.index.json", weight_map=names | {UP: wrong})
    assert f"{wrong}: lacks tensors that model.safetensors.index.json places there: {UP}" in refused(sharded)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": {"a": 1}}', "\xff"])
def test_a_malformed_index_is_refused(sharded: Path, text: str) -> None:
    (sharded / "model.safetensors.index.json").write_bytes(text.encode("latin-1"))
    assert "model.safetensors.index.json" in refused(sharded)


def test_an_unknown_architecture_is_refused_before_its_files_are_opened(single: Path) -> None:
    config = json.loads((single / "config.json").read_text())
    (single / "config.json").write_text(json.dumps(config | {"model_type": "mpt"}))
    (single / "model.safetensors").unlink()
    assert "model_type 'mpt' is not supported: supported are" in refused(single)


def test_the_masks_and_the_bare_names_of_gpt2_on_the_hub_are_read(tmp_path: Path) -> None:
    """Its files were written from a model without a head, whose layers kept their masks, later as booleans."""
    made, hub = copy_checkpoint("gpt2", tmp_path), tmp_path / "hub"
    shutil.copytree(made, hub)
    tensors = load_file(made / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    mask = torch.ones(1, 1, 8, 8).tril()
    masks = {"h.0.attn.bias": mask, "h.1.attn.bias": mask.bool(), "h.2.attn.masked_bias": torch.tensor(-1e4)}
    save_file(bare | masks, hub / "model.safetensors")
    ours, theirs = (open_checkpoint(one, "bfloat16") for one in (made, hub))
    blocks = [bytearray(layout.size_bytes) for layout in ours.layouts]
    sums = [[one.read_block(index, memoryview(block)) for index, block in enumerate(blocks)] for one in (ours, theirs)]
    assert sums[0] == sums[1]


def test_a_matrix_of_booleans_is_refused(single: Path) -> None:
    tensors = load_file(single / "model.safetensors")
    save_file(tensors | {UP: tensors[UP].bool()}, single / "model.safetensors")
    assert f"{UP} is BOOL; supported are F32, BF16, F16" in refused(single)
