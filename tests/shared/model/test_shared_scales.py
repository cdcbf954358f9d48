"""Panels whose outputs share their scales: of matrices whose blocks of scales they do not cross."""

import pytest
from msgspec.structs import replace

from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.messages.quantization import Packing, Quantization
from livescale.shared.model.block_layout import shard_layouts
from tests.shared.model.declaration.test_quantization import MATRICES, MODEL

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
