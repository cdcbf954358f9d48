"""Packed matrices: which tensors are packed, and the bytes that they take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.shared.messages.quantization import Packing, Quantization
from livescale.shared.model.packed.form import (
    ALIGNMENT,
    CODE_BITS,
    PANEL_OUTPUTS,
    SCALE_BYTES,
    group_count,
    group_of,
    packed_bytes,
    packing_of,
    panel_parts,
    scales_of_group,
)

INT4, FP8 = Packing(codes="int4", group=128, scales="float16"), Packing(codes="fp8", group=0, scales="float32")
PACKINGS = st.builds(
    Packing,
    codes=st.sampled_from(sorted(CODE_BITS)),
    group=st.sampled_from([0, 2, 32, 128]),
    scales=st.sampled_from(sorted(SCALE_BYTES)),
    zeros=st.booleans(),
)
SIZES = st.integers(1, 300)


@pytest.mark.parametrize(
    ("tensor", "packing"),
    [
        ("model.layers.0.mlp.up_proj.weight", INT4),
        ("model.layers.1.mlp.up_proj.weight", FP8),
        ("model.layers.1.self_attn.q_proj.weight", None),
        ("model.layers.0.mlp.up_proj.bias", None),
        ("model.embed_tokens.weight", None),
        ("lm_head.weight", None),
    ],
)
def test_matrices_of_layers_are_packed_as_their_layer_says(tensor: str, packing: Packing | None) -> None:
    parts = [{"mlp.up_proj": 0}, {"mlp.up_proj": 1}]
    quantization = Quantization(stored="gptq", packings=[INT4, FP8], parts=parts, layers=[0, 1])
    assert packing_of(quantization, tensor) == packing
    assert packing_of(None, tensor) is None


@given(PACKINGS, SIZES)
def test_groups_cover_all_inputs(packing: Packing, inputs: int) -> None:
    each, count = group_of(packing, inputs), group_count(packing, inputs)
    assert (count - 1) * each < inputs <= count * each
    assert packing.group or count == 1


@given(PACKINGS, SIZES, SIZES)
def test_a_matrix_has_room_for_every_code_scale_and_zero_and_little_more(
    packing: Packing, outputs: int, inputs: int
) -> None:
    scales, zeros, codes = panel_parts(packing, inputs)
    wanted = SCALE_BYTES[packing.scales] * group_count(packing, inputs) * scales_of_group(packing)
    assert wanted <= scales < wanted + ALIGNMENT
    assert zeros == (group_count(packing, inputs) * PANEL_OUTPUTS if packing.zeros else 0)
    assert 8 * codes >= CODE_BITS[packing.codes] * inputs * PANEL_OUTPUTS
    panels, rest = divmod(packed_bytes(packing, outputs, inputs), scales + zeros + codes)
    assert rest == 0
    assert (panels - 1) * PANEL_OUTPUTS < outputs <= panels * PANEL_OUTPUTS
