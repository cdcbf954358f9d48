"""The MLP of a layer as experts, of which a router chooses some for each row.

Rows are gathered by expert, and what the experts of a row make is added in float32 in the order of choice. The router
computes in float32; of experts that a row wants as much, the first is chosen first. So a row's bits do not depend on
which rows use the same experts.
"""

from array import array
from collections.abc import Iterator

import torch

from livescale.services.worker.engine.kernels.variants import TYPES, Kernels
from livescale.services.worker.engine.matrices import CompiledLinear, make_gated
from livescale.services.worker.engine.parameters import DTYPES, Linear, Tensors, TorchLinear, padded
from livescale.shared.messages.experts import Experts
from livescale.shared.messages.parameters import Activation

ROUTER = "mlp.gate"


class TorchExperts:
    """Experts by torch's kernels, on any device."""

    def __init__(self, experts: Experts, tensors: Tensors, activation: Activation) -> None:
        self._experts = experts
        self._router = TorchLinear(wide_router(tensors), ROUTER)
        self._here = [
            (number, make_gated(own, "gate_proj", "up_proj", None, activation), TorchLinear(own, "down_proj"))
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
        weights, order = torch.sort(logits.softmax(dim=1), dim=1, descending=True, stable=True)
        weights, chosen = weights[:, : self._experts.chosen], order[:, : self._experts.chosen]
        if self._experts.normalized:
            weights = weights / weights.sum(dim=1, keepdim=True)
        return weights, chosen


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
        # `Experts` of experts.h, and the array of `Expert` that it names.
        self._each = array("q", [number for matrix in both for number in matrix.numbers])
        here, is_gelu = experts.here, int(activation != "silu")
        counts = experts.count, experts.chosen, here.start, len(here), int(experts.normalized), is_gelu
        self._struct = array("q", (*router.numbers, *counts, self._each.buffer_info()[0]))
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
    """Widen the router's matrix to float32, in which its product is computed."""
    return {f"{ROUTER}.weight": tensors[f"{ROUTER}.weight"].float()}


def each_expert(tensors: Tensors) -> Iterator[Tensors]:
    """The matrices of each expert that is here, as views of the tensors of all."""
    names = ("gate_proj", "up_proj", "down_proj")
    for matrices in zip(*(tensors[f"mlp.experts.{name}.weight"] for name in names), strict=True):
        yield {f"{name}.weight": matrix for name, matrix in zip(names, matrices, strict=True)}
