from math import prod
from typing import Any

import pytest
import torch
import transformers
from msgspec import structs

from livescale.shared.messages.parameters import DType, Family
from livescale.shared.model.block_layout import ALIGNMENT, ITEM_BYTES, block_layouts, block_shapes
from livescale.shared.model.checkpoint import load_model_config
from tests.checkpoints import FAMILIES, tiny_checkpoint


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_hold_every_parameter_of_transformers_once(family: Family) -> None:
    checkpoint = tiny_checkpoint(family)  # made outside of the meta device
    with torch.device("meta"):
        model: Any = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(checkpoint))
    config = load_model_config(tiny_checkpoint(family))
    ours = [(name, tuple(shape)) for block in block_shapes(config).values() for name, shape in block.items()]
    theirs = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert len(ours) == len(theirs)
    assert dict(ours) == theirs


def test_blocks_come_in_the_order_of_execution() -> None:
    config = load_model_config(tiny_checkpoint("llama"))
    assert list(block_shapes(config)) == ["embedding", "layer-0", "layer-1", "layer-2", "head"]
    assert [layout.index for layout in block_layouts(config, "bfloat16")] == [0, 1, 2, 3, 4]


def test_a_tied_head_has_no_tensor_of_its_own() -> None:
    assert list(block_shapes(load_model_config(tiny_checkpoint("qwen2")))["head"]) == ["model.norm.weight"]
    assert list(block_shapes(load_model_config(tiny_checkpoint("llama")))["head"]) == [
        "model.norm.weight",
        "lm_head.weight",
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_are_aligned_adjacent_and_inside_their_block(family: Family, dtype: DType) -> None:
    for layout in block_layouts(load_model_config(tiny_checkpoint(family)), dtype):
        end = 0
        for tensor in layout.tensors:
            assert tensor.offset % ALIGNMENT == 0
            assert 0 <= tensor.offset - end < ALIGNMENT
            end = tensor.offset + prod(tensor.shape) * ITEM_BYTES[dtype]
        assert 0 <= layout.size_bytes - end < ALIGNMENT


def test_matrices_of_bfloat16_lie_in_panels_where_they_fill_them_and_are_not_looked_up_by_row() -> None:
    config = structs.replace(
        load_model_config(tiny_checkpoint("llama")), hidden_size=128, intermediate_size=192, vocab_size=640
    )
    config = structs.replace(config, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    blocks = block_layouts(config, "bfloat16", layout="panels")
    assert [(block.name, block.size_bytes) for block in blocks] == [
        (block.name, block.size_bytes) for block in block_layouts(config, "bfloat16")
    ]
    names = {tensor.name.split(".")[-2] for block in blocks for tensor in block.tensors if tensor.layout == "panels"}
    assert names == {"q_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"}
    plain = [tensor.layout for block in block_layouts(config, "float32", layout="panels") for tensor in block.tensors]
    assert set(plain) == {"plain"}


def test_projections_of_one_input_can_be_read_as_one_matrix() -> None:
    layer = block_layouts(load_model_config(tiny_checkpoint("llama")), "bfloat16")[1]
    offsets = {tensor.name.removeprefix("model.layers.0."): tensor for tensor in layer.tensors}
    q, k, v = (offsets[f"self_attn.{name}_proj.weight"] for name in "qkv")
    assert k.offset == q.offset + prod(q.shape) * 2
    assert v.offset == k.offset + prod(k.shape) * 2
