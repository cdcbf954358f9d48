"""The MLP of a layer as experts, of which a router chooses some for each row.

Rows are gathered by expert, and what the experts of a row make is added in float32 in the order of choice. The router
computes in float32; of experts that a row wants as much, the first is chosen first. So a row's bits do not depend on
which rows use the same experts.
"""

from array import array
from collections.abc import Iterator

import torch

from livescale.services.worker.engine.kernels.variants import TYPES, Kernels, double_bits
from livescale.services.worker.engine.matrices import CompiledLinear, Gated, make_gated
from livescale.services.worker.engine.parameters import (
    DTYPES,
    Linear,
    Tensors,
    TorchLinear,
    matrices_of,
    out_of_panels,
    padded,
    row_by_row,
)
from livescale.shared.messages.layers import Experts
from livescale.shared.messages.parameters import Activation

ROUTER, CHOICE_BIAS = "mlp.gate", "mlp.gate.e_score_correction_bias"
STACK = "mlp.experts."


class TorchExperts:
    """Experts by torch's kernels, on any device."""

    def __init__(self, experts: Experts, tensors: Tensors, activation: Activation) -> None:
        self._experts = experts
        self._router = TorchLinear(wide_router(tensors), ROUTER)
        self._bias = tensors.get(CHOICE_BIAS)
        self._here = [
            (number, _gated(experts, own, activation), TorchLinear(own, "down_proj"))
            for number, own in zip(experts.here, each_expert(tensors), strict=True)
        ]

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        return padded(rows)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """`[row, hidden]` -> `[row, hidden]`, in the rows' type."""
        weights, chosen = self._choose(self._router(padded(rows).float())[: len(rows)])
        made = rows.new_zeros(*chosen.shape, rows.shape[1], dtype=torch.float32)
        for number, gated, down in self._here:
            row, place = (chosen == number).nonzero(as_tuple=True)
            if len(row):
                made[row, place] = down(gated(padded(rows[row])))[: len(row)].float()
        total = weights[:, :1] * made[:, 0]
        for choice in range(1, chosen.shape[1]):
            total = total + weights[:, choice, None] * made[:, choice]
        return total.to(rows.dtype)

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + self(rows)

    def _choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights and the numbers of the experts of each row, `[row, choice]`."""
        experts, bias = self._experts, self._bias
        weights = logits.softmax(dim=1) if bias is None else row_by_row(torch.sigmoid, logits)
        wanted = self._in_best_groups(weights if bias is None else weights + bias)
        chosen = torch.sort(wanted, dim=1, descending=True, stable=True).indices[:, : experts.chosen]
        weights = weights.gather(1, chosen)
        if experts.normalized:
            weights = weights / weights.sum(dim=1, keepdim=True)
        return weights if experts.scale == 1.0 else weights * experts.scale, chosen

    def _in_best_groups(self, wanted: torch.Tensor) -> torch.Tensor:
        """How much each expert is wanted, `[row, expert]`, where those of other groups are not at all."""
        experts = self._experts
        if experts.groups == 1:
            return wanted
        groups = wanted.view(len(wanted), experts.groups, -1)
        best = groups.sort(dim=2, descending=True).values
        rates = best[..., 0] if self._bias is None else best[..., 0] + best[..., 1]
        left = torch.sort(rates, dim=1, descending=True, stable=True).indices[:, experts.chosen_groups :]
        return groups.scatter(1, left.unsqueeze(2).expand(-1, -1, groups.shape[2]), float("-inf")).flatten(1)


class SharedExperts:
    """Experts, and an MLP that all rows use besides: `gated` and `down` are its matrices."""

    def __init__(self, experts: Linear, gated: Gated, down: Linear) -> None:
        self._experts = experts
        self._gated = gated
        self._down = down

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        return self._experts.padded(rows)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._down.plus(self._gated(rows), self._experts(rows))

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._down.plus(self._gated(rows), self._experts.plus(rows, residual))


class WeighedGated:
    """The features of shared experts, times a likelihood that the matrix `gate` makes of each row. Features and not
    outputs are multiplied, so that ranks and the residual are added as without it."""

    def __init__(self, gated: Gated, gate: Linear) -> None:
        self._gated = gated
        self._gate = gate

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        weights = row_by_row(torch.sigmoid, self._gate(rows).float())
        return (self._gated(rows) * weights).to(rows.dtype)


class ClampedGated:
    """The SwiGLU of gpt-oss, by torch's kernels: the gate has an upper limit, and up one on both sides."""

    def __init__(self, gate: Linear, up: Linear, alpha: float, limit: float) -> None:
        self._gate = gate
        self._up = up
        self._alpha = alpha
        self._limit = limit

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate(rows).float(), self._up(rows).float()
        gate, up = gate.clamp(max=self._limit), up.clamp(-self._limit, self._limit)
        opened = gate * row_by_row(torch.sigmoid, gate * self._alpha)
        return ((up + 1) * opened).to(rows.dtype)


def _gated(experts: Experts, tensors: Tensors, activation: Activation) -> Gated:
    """What makes features of rows, by torch's kernels."""
    if not experts.swiglu_limit:
        return make_gated(tensors, "gate_proj", "up_proj", None, activation)
    gate, up = TorchLinear(tensors, "gate_proj"), TorchLinear(tensors, "up_proj")
    return ClampedGated(gate, up, experts.swiglu_alpha, experts.swiglu_limit)


class CompiledExperts:
    """Experts by the compiled kernels, in one call."""

    def __init__(self, kernels: Kernels, experts: Experts, tensors: Tensors, activation: Activation) -> None:
        self._run_experts = kernels.run_experts
        self._type = TYPES[DTYPES[tensors[f"{ROUTER}.weight"].dtype]]
        self._matrices = [CompiledLinear(kernels, wide_router(tensors), ROUTER)]
        for own in each_expert(tensors):
            self._matrices.append(CompiledLinear(kernels, own, "gate_proj", "up_proj"))
            self._matrices.append(CompiledLinear(kernels, own, "down_proj"))
        router, *both = self._matrices
        # `Experts` of experts.h, and the array of `Expert` that it names. The last numbers are the bits of doubles.
        self._each = array("q", [number for matrix in both for number in matrix.numbers])
        here, is_gelu = experts.here, int(activation != "silu")
        counts = experts.count, experts.chosen, here.start, len(here), int(experts.normalized), is_gelu
        self._bias = tensors.get(CHOICE_BIAS)
        places = self._each.buffer_info()[0], 0 if self._bias is None else self._bias.data_ptr()
        factors = double_bits(experts.swiglu_alpha, experts.swiglu_limit, experts.scale)
        groups = experts.groups, experts.chosen_groups
        self._struct = array("q", (*router.numbers, *counts, *groups, *places, *factors))
        self._address = self._struct.buffer_info()[0]

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows` as they are: the kernels take any number of them."""
        return rows

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._run(rows, 0)

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        residual = residual.contiguous()
        return self._run(rows, residual.data_ptr())

    def _run(self, rows: torch.Tensor, residual: int) -> torch.Tensor:
        rows = rows.contiguous()
        result = torch.empty_like(rows)
        self._run_experts(self._type, self._address, rows.data_ptr(), residual, result.data_ptr(), rows.shape[0])
        return result


def make_experts(experts: Experts, tensors: Tensors, kernels: Kernels | None, activation: Activation) -> Linear:
    """Experts by the compiled kernels, or torch's where `kernels` is None."""
    if kernels is None:
        return TorchExperts(experts, tensors, activation)
    return CompiledExperts(kernels, experts, tensors, activation)


def wide_router(tensors: Tensors) -> Tensors:
    """Widen the router's matrix and bias to float32, in which its product is computed. The matrix is taken out of
    panels, which pairs of bfloat16 fill otherwise than float32."""
    names = (f"{ROUTER}.weight", f"{ROUTER}.bias")
    return {name: out_of_panels(tensors[name]).float() for name in names if name in tensors}


def each_expert(tensors: Tensors) -> Iterator[Tensors]:
    """The matrices and biases of each expert that is here, as views of the tensors of all."""
    names = [name for name in tensors if name.startswith(STACK)]
    for own in zip(*(matrices_of(tensors[name]) for name in names), strict=True):
        yield {name.removeprefix(STACK): one for name, one in zip(names, own, strict=True)}
