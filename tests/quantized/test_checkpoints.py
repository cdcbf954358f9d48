"""Checkpoints that other people's code packed are read as they read them."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.parameters import PackedMatrix, block_tensors, unpacked
from livescale.shared.model.checkpoint import CheckpointError, load_model_config
from livescale.shared.model.sharding import possible_shards

HERE = Path(__file__).parent
NAMES = sorted(path.parent.name for path in HERE.glob("*/config.json"))
LAYER = "model.layers.0"


def matrices(directory: Path, shards: int = 1) -> list[dict[str, torch.Tensor]]:
    """The matrices of the layer in bfloat16, of each rank."""
    checkpoint = open_checkpoint(directory, "bfloat16", shards)
    made = []
    for index in range(1, len(checkpoint.layouts), 3):
        into = memoryview(bytearray(checkpoint.layouts[index].size_bytes))
        block = checkpoint.layouts[index].block(checkpoint.read_block(index, into))
        tensors = block_tensors(block, into, "bfloat16")
        packed = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, PackedMatrix)}
        made.append({name.removesuffix(".weight"): unpacked(tensor) for name, tensor in packed.items()})
    return made


def digest(matrix: torch.Tensor) -> str:
    return hashlib.sha256(matrix.view(torch.uint8).numpy().tobytes()).hexdigest()


def changed(directory: Path, name: str, **fields: Any) -> Path:
    """A copy of a checkpoint whose quantization_config has other fields."""
    shutil.copytree(HERE / name, directory)
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"].update(fields)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("name", NAMES)
def test_matrices_are_those_that_others_dequantize(name: str) -> None:
    [made] = matrices(HERE / name)
    expected = json.loads((HERE / name / "expected.json").read_text())
    assert {key: digest(matrix) for key, matrix in made.items()} == expected


@pytest.mark.parametrize("name", NAMES)
def test_ranks_have_parts_of_the_same_matrices(name: str) -> None:
    [whole] = matrices(HERE / name)
    first, second = matrices(HERE / name, shards=2)
    for key, matrix in whole.items():
        dimension = int(key.endswith(("o_proj", "down_proj")))
        assert torch.equal(torch.cat((first[key], second[key]), dimension), matrix), key


def test_ranks_that_would_cut_groups_are_refused(tmp_path: Path) -> None:
    directory = changed(tmp_path / "m", "gptq", group_size=32)
    assert possible_shards(load_model_config(directory)) == [1]
    with pytest.raises(CheckpointError, match="cuts groups of 32 inputs of self_attn"):
        open_checkpoint(directory, "bfloat16", 2)


@pytest.mark.parametrize(
    ("name", "fields", "problem"),
    [
        ("gptq", {"desc_act": True}, "desc_act is true: its inputs are in another order"),
        ("gptq", {"bits": 3}, "bits is 3; supported are 4 and 8"),
        ("gptq", {"dynamic": {"+:.*": {}}}, "dynamic quantizes modules unlike each other"),
        ("gptq", {"lm_head": True}, "lm_head is quantized"),
        ("gptq", {"group_size": 15}, "group_size is 15, must be even"),
        ("awq", {"version": "gemv"}, "version is 'gemv'"),
        (
            "awq",
            {"quant_method": "bitsandbytes"},
            "quant_method is 'bitsandbytes', which is not served; supported are",
        ),
        ("awq", {"quant_method": "hqq"}, "quant_method is 'hqq'"),
        ("int8", {"format": "marlin-24"}, "format is 'marlin-24', which is not served"),
        ("int8", {"ignore": []}, "lm_head is quantized, and heads are served in bfloat16"),
        ("int8", {"ignore": ["re:(a+)+$", "lm_head"]}, "is too large; name modules instead"),
        ("int8", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config says that matrices are sparse"),
        ("int8", {"config_groups": 3}, "config_groups must be an object"),
    ],
)
def test_what_is_not_served_is_refused_by_name(name: str, fields: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config.json: .*") as caught:
        load_model_config(changed(tmp_path / "m", name, **fields))
    assert problem in str(caught.value)


def test_quantized_checkpoints_are_served_in_bfloat16_alone() -> None:
    with pytest.raises(CheckpointError, match="quantized checkpoints are served in bfloat16"):
        open_checkpoint(HERE / "awq", "float32")


def test_zeros_that_the_file_does_not_tell_of_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has zeros of its own, though quantization_config says sym"):
        matrices(changed(tmp_path / "m", "gptq", sym=True))
