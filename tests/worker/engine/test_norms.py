"""LayerNorm and GELU by the compiled kernels: right for any number of columns, each row by itself."""

import math

import pytest
import torch

from livescale.services.worker.engine.kernels.variants import TYPES, Kernels
from livescale.services.worker.engine.norms import CompiledLayerNorm, TorchLayerNorm
from livescale.services.worker.engine.parameters import DTYPES
from tests.worker.engine.models import VARIANTS_HERE

pytestmark = pytest.mark.skipif(not VARIANTS_HERE, reason="kernels were not compiled")
EACH = [pytest.param(kernels, id=name) for name, kernels in VARIANTS_HERE.items()]


@pytest.mark.parametrize("size", [1, 15, 16, 50, 384])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", EACH)
def test_layer_norm_is_that_of_torch(kernels: Kernels, dtype: torch.dtype, size: int) -> None:
    torch.manual_seed(size)
    rows, weight, bias = (torch.randn(shape).to(dtype) for shape in ((7, size), (size,), (size,)))
    rows = rows * 3 + 2  # a mean that is not zero
    compiled = CompiledLayerNorm(kernels, weight, bias, 1e-5)
    made, right = compiled(rows), TorchLayerNorm(weight.float(), bias.float(), 1e-5)(rows.float())
    assert torch.allclose(made.float(), right, atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=1e-2)
    assert torch.equal(torch.cat([compiled(row.unsqueeze(0)) for row in rows]), made)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernels", EACH)
def test_gelu_is_by_the_error_function(kernels: Kernels, dtype: torch.dtype) -> None:
    given = torch.cat((torch.linspace(-12, 12, 1_001), torch.tensor([0.0, -0.0, 80.0, -80.0]))).to(dtype).unsqueeze(0)
    made = torch.empty_like(given)
    kernels.gelu(TYPES[DTYPES[dtype]], given.data_ptr(), made.data_ptr(), *given.shape)
    right = torch.tensor([x * 0.5 * math.erfc(-x / math.sqrt(2)) for x in given[0].tolist()])
    error = (made[0].float() - right).abs()
    assert error.max() <= (1e-6 if dtype == torch.float32 else 4e-2)
    assert (error <= 1e-6 + right.abs() * (1e-6 if dtype == torch.float32 else 2**-8)).all()
