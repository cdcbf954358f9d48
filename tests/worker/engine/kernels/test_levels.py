"""Each level of vector instructions multiplies in a way of its own, by how many rows there are; and all have the same
bits."""

import pytest
import torch

from livescale.services.worker.engine.kernels.variants import VariantName, find_compiled
from livescale.services.worker.engine.matrices import CompiledLinear
from livescale.shared.messages.quantization import Packing
from tests.worker.engine.models import VARIANTS_HERE, needs_kernels
from tests.worker.engine.packed_matrices import make_packed

# Every number of rows of a group and of what is left of one, and more than are packed at once.
ROWS = (*range(1, 20), 33, 130, 200)
SHAPES = [(64, 32), (70, 131), (130, 352), (100, 1_113)]
PACKINGS = [
    Packing(codes="int4", group=32, scales="float16", zeros=True),
    Packing(codes="int4", group=34, scales="bfloat16"),
    Packing(codes="int8", group=0, scales="float32", zeros=True),
    Packing(codes="fp8", group=128, scales="float32-panel"),
    Packing(codes="fp8", group=6, scales="float16"),
    Packing(codes="fp4", group=32, scales="e8m0"),
]


@needs_kernels
@pytest.mark.parametrize("variant", ["portable", "amx-emulated"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_have_the_same_bits_at_every_level_whatever_the_number_of_rows(
    shape: tuple[int, int], dtype: torch.dtype, variant: VariantName
) -> None:
    compiled = find_compiled()
    assert compiled is not None
    generator = torch.Generator().manual_seed(sum(shape))
    matrix = torch.randn(shape, generator=generator).to(dtype)
    rows = torch.randn(max(ROWS), shape[1], generator=generator).to(dtype)
    best, *others = (
        CompiledLinear(compiled.Kernels(variant, level, 1), {"m.weight": matrix}, "m") for level in compiled.levels()
    )
    made = best(rows)
    for count in ROWS:
        assert torch.equal(best(rows[-count:]), made[-count:]), count
    for other in others:
        assert torch.equal(other(rows), made)


@needs_kernels
@pytest.mark.parametrize("variant", ["portable", "amx-emulated"])
@pytest.mark.parametrize("scale", [0.01, 0.0, 1e-6, 1e28], ids=str)
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_packed_matrices_have_the_bits_of_their_numbers_at_every_level(
    packing: Packing, scale: float, variant: VariantName
) -> None:
    """With scales that are zero, and with those of float16 that are denormal, or infinite, as well."""
    compiled = find_compiled()
    assert compiled is not None
    made = make_packed(packing, 70, 355, scale=scale)
    rows = torch.randn(19, 355, generator=torch.Generator().manual_seed(1)).bfloat16()
    for level in compiled.levels():
        kernels = compiled.Kernels(variant, level, 1)
        packed, plain = (CompiledLinear(kernels, {"m.weight": one}, "m") for one in (made.packed, made.right))
        for count in (1, 2, 5, 19):
            assert torch.equal(packed(rows[:count]).view(torch.int16), plain(rows[:count]).view(torch.int16)), level


@pytest.mark.skipif("avx512_bf16" not in VARIANTS_HERE, reason="this CPU has no AVX512-BF16")
@pytest.mark.parametrize("scale", [1.0, 2.0**-64, 2.0**-126], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dot_products_and_multiply_adds_have_the_same_bits(shape: tuple[int, int], scale: float) -> None:
    """Of small numbers too: products, sums, what is added to them, or the numbers themselves are denormal."""
    compiled = find_compiled()
    assert compiled is not None
    generator = torch.Generator().manual_seed(sum(shape))
    matrix = (torch.randn(shape, generator=generator) * scale).bfloat16()
    rows = (torch.randn(max(ROWS), shape[1], generator=generator) * max(scale, 2.0**-64)).bfloat16()
    residual = (torch.randn(max(ROWS), shape[0], generator=generator) * 2.0**-127).bfloat16()
    dots, fma = (
        CompiledLinear(compiled.Kernels("avx512_bf16", means, 1), {"m.weight": matrix}, "m")
        for means in ("dots", "fma")
    )
    for count in ROWS:
        bits = [way.plus(rows[:count], residual[:count]).view(torch.int16) for way in (dots, fma)]
        assert torch.equal(*bits), count
