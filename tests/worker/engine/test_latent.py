"""Latent attention's matrices by head, in every kind of kernels; test_architectures.py has it against transformers."""

import pytest
import torch

from livescale.services.worker.engine.latent import HeadMatrices, HeadOrder, LatentOutput
from livescale.services.worker.engine.matrices import make_linear
from livescale.services.worker.engine.parameters import TORCH_DTYPES, padded
from livescale.shared.messages.layers import Latent
from livescale.shared.model.declaration.tensors import EXPANDING
from tests.worker.engine.models import KINDS, Kind

HEADS, INPUTS, OUTPUTS = 5, 24, 40
LATENT = Latent(kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=20)
each_kind = pytest.mark.parametrize("kind", KINDS)


def multiply(kind: Kind, matrices: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    rows = padded(rows.flatten(1))
    rows = rows.view(len(rows), HEADS, -1)
    made = rows.new_empty(len(rows), HEADS, OUTPUTS)
    HeadMatrices(matrices, kind.kernels)(rows, made)
    return made


@each_kind
def test_each_head_has_a_matrix_of_its_own(kind: Kind) -> None:
    """Of more rows than are gathered at a time, and of heads that have more numbers than their matrix takes."""
    torch.manual_seed(3)
    dtype = TORCH_DTYPES[kind.dtype]
    matrices, rows = torch.randn(HEADS, OUTPUTS, INPUTS).to(dtype), torch.randn(300, HEADS, INPUTS + 7).to(dtype)
    right = torch.einsum("rhi,hoi->rho", rows[..., :INPUTS].double(), matrices.double())
    found = multiply(kind, matrices, rows)[:300]
    assert (found - right).abs().max() <= (0.2 if kind.dtype == "bfloat16" else 1e-4)
    alone = torch.cat([multiply(kind, matrices, row)[:1] for row in torch.split(rows, 1)])
    assert torch.equal(alone, found)


@each_kind
def test_values_are_made_of_what_was_gathered(kind: Kind) -> None:
    """What rotates is left out of them."""
    torch.manual_seed(4)
    dtype, order = TORCH_DTYPES[kind.dtype], HeadOrder(LATENT)
    expanding = torch.randn(HEADS, LATENT.expanded_dim, LATENT.kv_lora_rank).to(dtype)
    tensors = {EXPANDING: expanding.flatten(0, 1), "o.weight": torch.randn(64, HEADS * LATENT.v_head_dim).to(dtype)}
    output = LatentOutput(LATENT, make_linear(tensors, "o", kernels=kind.kernels), tensors, kind.kernels)
    gathered, turned = torch.randn(16, HEADS, LATENT.kv_lora_rank), torch.randn(16, HEADS, LATENT.qk_rope_head_dim)
    rows = torch.empty(16, HEADS, LATENT.kept_dim, dtype=dtype)
    order.put(order.latent, gathered.to(dtype), rows)
    order.put(order.turning, turned.to(dtype), rows)
    values = torch.einsum("rhl,hvl->rhv", gathered.to(dtype).double(), expanding.double()[:, LATENT.qk_nope_head_dim :])
    right = values.flatten(1) @ tensors["o.weight"].double().T
    found = output(rows.flatten(1))
    assert (found - right).abs().max() <= (0.02 if kind.dtype == "bfloat16" else 1e-4) * right.std()
    assert torch.equal(output.plus(rows.flatten(1), torch.zeros_like(found)), found)


def test_every_number_of_the_head_has_one_place() -> None:
    order = HeadOrder(LATENT)
    places = [
        place for slices in (order.turning, order.latent) for one in slices for place in range(one.start, one.stop)
    ]
    assert sorted(places) == list(range(LATENT.kept_dim))
    half = LATENT.kept_dim // 2
    assert order.turning[1].start - order.turning[0].start == half == order.latent[1].start - order.latent[0].start
