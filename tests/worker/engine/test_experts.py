"""Experts by every kind of kernels: which are chosen, and what each row gets of them."""

import pytest
import torch

from livescale.services.worker.engine.experts import make_experts
from livescale.services.worker.engine.parameters import TORCH_DTYPES
from livescale.shared.messages.layers import Experts, Scoring
from tests.worker.engine.models import KINDS, Kind

HIDDEN, FEATURES, COUNT, CHOSEN = 40, 24, 7, 3
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2}
each_kind = pytest.mark.parametrize("kind", KINDS)


def made_up(dtype: torch.dtype, *, tied: bool = False) -> dict[str, torch.Tensor]:
    """The tensors of one layer's experts. Where they are `tied`, all rows want all of them as much."""
    torch.manual_seed(3)
    shapes = {
        "mlp.gate.weight": (COUNT, HIDDEN),
        "mlp.experts.gate_proj.weight": (COUNT, FEATURES, HIDDEN),
        "mlp.experts.up_proj.weight": (COUNT, FEATURES, HIDDEN),
        "mlp.experts.down_proj.weight": (COUNT, HIDDEN, FEATURES),
    }
    tensors = {name: (torch.randn(shape) / shape[-1] ** 0.5).to(dtype) for name, shape in shapes.items()}
    if tied:
        tensors["mlp.gate.weight"] = tensors["mlp.gate.weight"][:1].repeat(COUNT, 1)
    return tensors


def expected(
    experts: Experts,
    tensors: dict[str, torch.Tensor],
    rows: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """What these experts make of each row, in float64, by their shares or with these weights of the chosen ones."""
    router, gate, up, down = (tensor.double() for tensor in tensors.values())
    rows = rows.double()
    shares = (rows @ router.T).softmax(dim=1).gather(1, chosen)
    if experts.normalized:
        shares = shares / shares.sum(dim=1, keepdim=True)
    shares = shares if weights is None else weights
    total = torch.zeros_like(rows)
    for row, numbers in enumerate(chosen.tolist()):
        for share, number in zip(shares[row], numbers, strict=True):
            gated = torch.nn.functional.silu(gate[number] @ rows[row]) * (up[number] @ rows[row])
            total[row] += share * (down[number] @ gated)
    return total


def compute(kind: Kind, experts: Experts, tensors: dict[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    made = make_experts(experts, tensors, kind.kernels, "silu")
    with torch.inference_mode():
        return made(made.padded(rows))[: len(rows)]


@each_kind
@pytest.mark.parametrize("normalized", [True, False])
def test_each_row_gets_its_experts_by_their_shares(kind: Kind, normalized: bool) -> None:
    dtype = TORCH_DTYPES[kind.dtype]
    experts = Experts(count=COUNT, chosen=CHOSEN, features=FEATURES, normalized=normalized)
    tensors, rows = made_up(dtype), torch.randn(600, HIDDEN).to(dtype)
    chosen = (rows.double() @ tensors["mlp.gate.weight"].double().T).topk(CHOSEN).indices
    right = expected(experts, tensors, rows, chosen)
    assert (compute(kind, experts, tensors, rows) - right).abs().max() <= TOLERANCE[kind.dtype]


@each_kind
def test_of_experts_that_are_wanted_as_much_the_first_are_chosen(kind: Kind) -> None:
    dtype = TORCH_DTYPES[kind.dtype]
    experts = Experts(count=COUNT, chosen=CHOSEN, features=FEATURES)
    tensors, rows = made_up(dtype, tied=True), torch.randn(5, HIDDEN).to(dtype)
    right = expected(experts, tensors, rows, torch.arange(CHOSEN).repeat(5, 1))
    assert (compute(kind, experts, tensors, rows) - right).abs().max() <= TOLERANCE[kind.dtype]


@each_kind
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_only_experts_of_the_best_groups_are_used(kind: Kind, scoring: Scoring) -> None:
    """Three groups of two, of which a row uses two. With sigmoid a bias decides with, and weighs nothing."""
    dtype = TORCH_DTYPES[kind.dtype]
    experts = Experts(
        count=6, chosen=3, features=FEATURES, scoring=scoring, groups=3, chosen_groups=2, scale=1.7, normalized=True
    )
    tensors = {name: tensor[:6] for name, tensor in made_up(dtype).items()}
    rows = torch.randn(600, HIDDEN).to(dtype)
    logits = rows.double() @ tensors["mlp.gate.weight"].double().T
    weights = logits.softmax(dim=1)
    wanted = weights
    biases = {}
    if scoring == "sigmoid":
        biases = {"mlp.gate.e_score_correction_bias": torch.randn(6)}
        weights = logits.sigmoid()
        wanted = weights + biases["mlp.gate.e_score_correction_bias"].double()
    groups = wanted.view(-1, 3, 2)
    worst = (groups.sum(dim=2) if scoring == "sigmoid" else groups.amax(dim=2)).argmin(dim=1)
    outside = torch.arange(6) // 2 == worst[:, None]
    chosen = wanted.masked_fill(outside, float("-inf")).topk(3).indices
    assert not torch.equal(chosen, wanted.topk(3).indices)  # so that groups matter
    weights = weights.gather(1, chosen)
    right = expected(experts, tensors, rows, chosen, 1.7 * weights / weights.sum(dim=1, keepdim=True))
    strays = (compute(kind, experts, tensors | biases, rows) - right).abs()
    assert strays.max() <= 3 * TOLERANCE[kind.dtype]


@each_kind
def test_of_groups_that_are_as_good_the_first_are_used(kind: Kind) -> None:
    dtype = TORCH_DTYPES[kind.dtype]
    experts = Experts(count=6, chosen=3, features=FEATURES, scoring="sigmoid", groups=3, chosen_groups=2)
    tensors = {name: tensor[:6] for name, tensor in made_up(dtype, tied=True).items()}
    rows = torch.randn(5, HIDDEN).to(dtype)
    weights = (rows.double() @ tensors["mlp.gate.weight"].double().T).sigmoid()
    right = expected(experts, tensors, rows, torch.arange(3).repeat(5, 1), weights[:, :3])
    found = compute(kind, experts, tensors | {"mlp.gate.e_score_correction_bias": torch.zeros(6)}, rows)
    assert (found - right).abs().max() <= TOLERANCE[kind.dtype]


@each_kind
def test_what_two_ranks_make_adds_up(kind: Kind) -> None:
    """Experts that are not here add nothing, and a row none of whose experts is here gets zeros."""
    dtype = TORCH_DTYPES[kind.dtype]
    tensors, rows = made_up(dtype), torch.randn(50, HIDDEN).to(dtype)
    parts = []
    for here in (range(2), range(2, COUNT)):
        own = {name: tensor if "gate.w" in name else tensor[here.start : here.stop] for name, tensor in tensors.items()}
        experts = Experts(count=COUNT, chosen=CHOSEN, features=FEATURES, first=here.start, held=len(here))
        parts.append(compute(kind, experts, own, rows).double())
    whole = compute(kind, Experts(count=COUNT, chosen=CHOSEN, features=FEATURES), tensors, rows)
    assert (sum(parts) - whole).abs().max() <= TOLERANCE[kind.dtype]
    assert (parts[0] == 0).all(dim=1).any()
