"""Quantized checkpoints that load makes: whoever reads them gets numbers close to what they were."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from livescale.load.quantize import BLOCK, group_of, is_quantized, quantization_config, quantize, quantize_all

NAME = "model.layers.0.mlp.up_proj.weight"
MODULE = NAME.removesuffix(".weight")


def matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * columns)).bfloat16()


def test_matrices_of_layers_are_quantized_and_nothing_else_is() -> None:
    assert is_quantized(NAME, [8, 8])
    for name, shape in ((NAME, [8]), ("lm_head.weight", [8, 8]), ("model.embed_tokens.weight", [8, 8])):
        assert not is_quantized(name, shape)
    tensors = {NAME: matrix(8, 8), "model.norm.weight": torch.ones(8)}
    made = quantize_all("int8", tensors, 8)
    assert made["model.norm.weight"] is tensors["model.norm.weight"]
    assert set(made) == {"model.norm.weight", NAME, f"{MODULE}.weight_scale"}


@given(st.lists(st.integers(1, 40).map(lambda half: 2 * half), min_size=1, max_size=4))
def test_a_group_fills_all_matrices(widths: list[int]) -> None:
    group = group_of({f"model.layers.{place}.a.weight": [4, width] for place, width in enumerate(widths)})
    assert all(width % group == 0 for width in widths)
    assert group == 128 or any(width % (2 * group) for width in widths)


def test_integers_of_8_bits_are_half_a_step_away_at_most() -> None:
    wide = matrix(6, 32)
    made = quantize("int8", NAME, wide, 32)
    scales = made[f"{MODULE}.weight_scale"].float()
    errors = (made[NAME].float() * scales - wide.float()).abs()
    assert bool((errors <= scales * (0.5 + 127 / 256)).all())  # scales are rounded themselves
    assert made[NAME].dtype == torch.int8


def test_integers_of_4_bits_are_packed_eight_to_a_word_the_first_lowest() -> None:
    wide, group = matrix(6, 32), 16
    made = quantize("int4", NAME, wide, group)
    words, scales = made[f"{MODULE}.weight_packed"], made[f"{MODULE}.weight_scale"].float()
    assert words.shape == (6, 4)
    codes = torch.stack([(words >> (4 * place)) & 15 for place in range(8)], dim=2).view(6, 32) - 8
    read = codes.view(6, 2, group) * scales[:, :, None]
    errors = (read - wide.float().view(6, 2, group)).abs()
    assert bool((errors <= scales[:, :, None] * 0.6).all())
    assert made[f"{MODULE}.weight_shape"].tolist() == [6, 32]


@pytest.mark.parametrize(("rows", "columns"), [(6, 32), (BLOCK, BLOCK), (BLOCK + 2, 2 * BLOCK + 8)])
def test_floats_of_8_bits_have_a_scale_for_each_block_edges_included(rows: int, columns: int) -> None:
    wide = matrix(rows, columns)
    made = quantize("fp8", NAME, wide, BLOCK)
    scales = made[f"{MODULE}.weight_scale_inv"]
    assert scales.shape == (-(-rows // BLOCK), -(-columns // BLOCK))
    each = scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    read = made[NAME].float() * each
    torch.testing.assert_close(read, wide.float(), rtol=1 / 16, atol=float(each.max()) / 256)


def test_config_json_names_the_group_that_the_matrices_were_quantized_by() -> None:
    weights = quantization_config("int4", 64)["config_groups"]["group_0"]["weights"]
    assert (weights["num_bits"], weights["strategy"], weights["group_size"]) == (4, "group", 64)
    assert quantization_config("fp8", 64)["weight_block_size"] == [BLOCK, BLOCK]
