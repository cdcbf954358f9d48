"""Experts: both ways in which checkpoints have them, and how ranks divide them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace

from livescale.services.host.checkpoint import Checkpoint, open_checkpoint
from livescale.shared.messages.layers import Experts
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.model.declaration.config_file import ConfigFile
from livescale.shared.model.declaration.experts import read_experts
from livescale.shared.model.sharding import check_shards, experts_of, possible_shards

SHAPE: dict[str, Any] = {
    "vocab_size": 515,
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 8,
    "num_experts": 6,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
}
FAMILIES = ("mixtral", "qwen3_moe", "olmoe")


def save(family: str, directory: Path, *, stacked: bool = False) -> Path:
    torch.manual_seed(5)
    unknown = {"mixtral": {"num_experts", "moe_intermediate_size"}, "qwen3_moe": {"num_experts"}}
    keys = unknown.get(family, {"num_local_experts", "moe_intermediate_size"})
    config = transformers.AutoConfig.for_model(family, **{key: SHAPE[key] for key in SHAPE.keys() - keys})
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape)
    model.save_pretrained(directory, save_original_format=not stacked)
    return directory


def blocks_of(checkpoint: Checkpoint) -> list[bytearray]:
    blocks = [bytearray(layout.size_bytes) for layout in checkpoint.layouts]
    for index, block in enumerate(blocks):
        checkpoint.read_block(index, memoryview(block))
    return blocks


def tensors_of(checkpoint: Checkpoint, blocks: list[bytearray]) -> list[dict[str, torch.Tensor]]:
    """The tensors of the layers' blocks, by name."""
    return [
        {
            tensor.name: torch.frombuffer(
                block, dtype=torch.float32, count=torch.Size(tensor.shape).numel(), offset=tensor.offset
            ).view(tensor.shape)
            for tensor in layout.tensors
        }
        for layout, block in zip(checkpoint.layouts, blocks, strict=True)
        if layout.name.startswith("layer-")
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_of_all_experts_as_one_are_read_as_those_of_each(family: str, tmp_path: Path) -> None:
    one = open_checkpoint(save(family, tmp_path / "each"), "bfloat16", 1, "panels")
    other = open_checkpoint(save(family, tmp_path / "stacked", stacked=True), "bfloat16", 1, "panels")
    assert {tensor.name for tensor in one.stored.values()} != {tensor.name for tensor in other.stored.values()}
    assert blocks_of(one) == blocks_of(other)


@pytest.mark.parametrize("shards", [2, 4])
def test_ranks_have_whole_experts_or_a_part_of_each(shards: int, tmp_path: Path) -> None:
    directory = save("qwen3_moe", tmp_path)
    whole = open_checkpoint(directory, "float32")
    cut = open_checkpoint(directory, "float32", shards)
    assert possible_shards(whole.config) == [1, 2, 4, 8]
    right, parts = tensors_of(whole, blocks_of(whole)), tensors_of(cut, blocks_of(cut))
    dimension = (
        {"gate_proj": 0, "up_proj": 0, "down_proj": 0}
        if shards == 2
        else {"gate_proj": 1, "up_proj": 1, "down_proj": 2}
    )
    for layer, tensors in enumerate(right):
        for name, along in dimension.items():
            full = f"model.layers.{layer}.mlp.experts.{name}.weight"
            joined = torch.cat([parts[layer + shard * len(right)][full] for shard in range(shards)], dim=along)
            assert torch.equal(joined, tensors[full])
    own = [experts_of(whole.config, shard, shards) for shard in range(shards)]
    assert own == ([range(3), range(3, 6)] if shards == 2 else [range(6)] * 4)


def test_ranks_that_divide_neither_experts_nor_features_are_not_possible(tmp_path: Path) -> None:
    config = open_checkpoint(save("mixtral", tmp_path), "float32").config
    odd = replace(config, experts=Experts(count=6, chosen=2, features=129))
    assert possible_shards(odd) == [1, 2]
    with pytest.raises(ValueError, match="divides neither the 6 experts nor their 129 features"):
        check_shards(odd, 4)


@pytest.mark.parametrize("spelled", ["num_experts", "num_local_experts"])
def test_both_spellings_of_the_number_of_experts_are_read(spelled: str) -> None:
    assert read_experts(ConfigFile({spelled: 12}), 8, 2, 64).count == 12


def test_more_chosen_experts_than_there_are_is_refused() -> None:
    with pytest.raises(CheckpointError, match="num_experts_per_tok is 9, and there are 8 experts"):
        read_experts(ConfigFile({"num_experts_per_tok": 9}), 8, 2, 64)
