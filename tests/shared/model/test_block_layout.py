from math import prod
from typing import Any

import pytest
import torch
import transformers
from msgspec import structs
from msgspec.structs import replace

from livescale.shared.messages.parameters import DType, Family, ModelConfig
from livescale.shared.messages.quantization import Packing, Quantization
from livescale.shared.model.block_layout import ALIGNMENT, ITEM_BYTES, block_layouts, block_shapes, shard_layouts
from livescale.shared.model.checkpoint import load_model_config
from tests.checkpoints import FAMILIES, tiny_checkpoint
from tests.shared.model.declaration.test_quantization import MATRICES, MODEL


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


FP8 = Packing(codes="fp8", group=128, scales="float32")
INT8 = Packing(codes="int8", group=0, scales="bfloat16")
WIDE = replace(MODEL, hidden_size=512, intermediate_size=256, head_dim=128)


def quantized(model: ModelConfig, rows: int, packing: Packing = FP8) -> ModelConfig:
    parts = [dict.fromkeys(sorted(MATRICES), 0)]
    return replace(model, quantization=Quantization(stored="fp8", packings=[packing], parts=parts, scale_rows=rows))


def shared(model: ModelConfig, shards: int = 1) -> bool:
    """Whether the packed matrices of the model have a scale for each panel; all do, or none does."""
    packings = {
        tensor.packing.scales
        for layout in shard_layouts(model, "bfloat16", shards - 1, shards)
        for tensor in layout.tensors
        if tensor.packing is not None
    }
    [scales] = packings
    return scales == "float32-panel"


@pytest.mark.parametrize(
    ("model", "rows", "shards", "expected"),
    [
        (WIDE, 128, 1, True),
        (WIDE, 64, 2, True),
        (WIDE, 0, 1, True),
        (MODEL, 0, 1, True),  # one scale for a whole matrix, which may fill no panel
        (WIDE, 1, 1, False),
        (WIDE, 96, 1, False),
        (MODEL, 128, 1, False),
        (replace(WIDE, intermediate_size=320), 128, 1, True),
        (replace(WIDE, intermediate_size=320), 128, 2, False),  # the second rank begins inside a panel
        (replace(WIDE, interleaved=True), 128, 1, True),  # a head's outputs are of one block, in any order
        (replace(WIDE, interleaved=True), 64, 1, False),
        (replace(WIDE, interleaved=True, rotary_dim=64, head_dim=64), 64, 1, True),
    ],
)
def test_panels_share_scales_where_none_has_outputs_of_two_blocks(
    model: ModelConfig, rows: int, shards: int, expected: bool
) -> None:
    assert shared(quantized(model, rows), shards) == expected


def test_integers_keep_a_scale_for_each_output() -> None:
    assert not shared(quantized(WIDE, 0, INT8))


def test_the_scales_of_a_square_block_take_a_thousandth_of_its_codes() -> None:
    size, wide = (
        sum(layout.size_bytes for layout in shard_layouts(model, "bfloat16", 0, 1)[1:-1])
        for model in (quantized(WIDE, 128), quantized(WIDE, 1))
    )
    codes = 2 * (2 * 512 * 512 + 2 * 256 * 512 + 3 * 256 * 512)
    assert size < 1.02 * codes < 1.03 * codes < wide
