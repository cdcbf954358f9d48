"""Multi-head latent attention (DeepSeek-V2) in its absorbed form: all heads attend over the latents themselves.

A head's key is a matrix times the latent. That matrix is multiplied by the query instead, and the matrix of values by
what the query has gathered. So attention sees one KV head whose key is its value, and nothing is expanded.

That head has the numbers that rotate and those of the latent, in an order in which the two numbers of each pair are
half a head apart. So the kernels rotate it as they do others: pairs of the latent have the frequency 0.
"""

from array import array
from collections.abc import Callable

import torch

from livescale.services.worker.engine.kernels.variants import TYPES, Kernels
from livescale.services.worker.engine.matrices import CompiledLinear
from livescale.services.worker.engine.norms import make_norm
from livescale.services.worker.engine.parameters import DTYPES, Linear, Tensors, TorchLinear, unpacked
from livescale.shared.messages.layers import Latent
from livescale.shared.model.declaration.tensors import EXPANDING

NORM_EPSILON = 1e-6  # of the norms of latents, whatever the model's is


class HeadOrder:
    """Where the numbers of the head lie, as slices of it: of each pair that rotates, and of the latent's two halves."""

    def __init__(self, latent: Latent) -> None:
        turning, half = latent.qk_rope_head_dim // 2, latent.kept_dim // 2
        self.turning = slice(0, turning), slice(half, half + turning)
        self.latent = slice(turning, half), slice(half + turning, latent.kept_dim)

    def put(self, places: tuple[slice, slice], values: torch.Tensor, into: torch.Tensor) -> None:
        """Put the halves of `values` `[..., number]` at these places of `into` `[..., kept_dim]`."""
        for place, half in zip(places, values.chunk(2, dim=-1), strict=True):
            into[..., place] = half


class HeadMatrices:
    """A matrix `[head, out, in]` for each head of a row."""

    def __init__(self, matrices: torch.Tensor, kernels: Kernels | None) -> None:
        own = [{"head.weight": matrix.contiguous()} for matrix in matrices.unbind(0)]
        self._outputs = matrices.shape[1]
        self._inputs = matrices.shape[2]
        self._kernels = kernels
        self._torch = [TorchLinear(one, "head") for one in own] if kernels is None else []
        self._compiled = [] if kernels is None else [CompiledLinear(kernels, one, "head") for one in own]
        # `Linear` of kernels.h, one after the other.
        self._maps = array("q", [number for matrix in self._compiled for number in matrix.numbers])

    def __call__(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Multiply `rows` `[row, head, number]`, of which each matrix takes the first numbers, into `out`
        `[row, head, out]`. The numbers of a head are adjacent in both, and in `out` heads are too."""
        if self._kernels is None:
            for head, matrix in enumerate(self._torch):
                out[:, head] = matrix(rows[:, head, : self._inputs].contiguous())
            return
        maps, heads = self._maps.buffer_info()[0], len(self._compiled)
        given, made = (rows.data_ptr(), rows.stride(0), rows.stride(1)), (out.data_ptr(), out.stride(0))
        self._kernels.multiply_heads(TYPES[DTYPES[rows.dtype]], maps, heads, *given, *made, rows.shape[0])


class LatentProjections:
    """What makes of rows their queries and keys, `[row, (query_head + 1) * kept_dim]`.

    `linear` makes the matrices of these names one linear map.
    """

    def __init__(
        self, latent: Latent, linear: Callable[..., Linear], tensors: Tensors, kernels: Kernels | None
    ) -> None:
        self._latent = latent
        self._order = HeadOrder(latent)
        first = "q_a_proj" if latent.q_lora_rank else "q_proj"
        self._first = linear(f"self_attn.{first}", "self_attn.kv_a_proj_with_mqa")
        self._norm = make_norm(tensors["self_attn.kv_a_layernorm.weight"], NORM_EPSILON, kernels)
        if latent.q_lora_rank:
            self._query_norm = make_norm(tensors["self_attn.q_a_layernorm.weight"], NORM_EPSILON, kernels)
            self._queries = linear("self_attn.q_b_proj")
        keys = _expanding(latent, tensors)[:, : latent.qk_nope_head_dim]
        absorbed = keys.new_zeros(len(keys), latent.kept_dim, latent.qk_nope_head_dim)
        self._order.put(self._order.latent, keys, absorbed.transpose(1, 2))
        self._absorbed = HeadMatrices(absorbed, kernels)
        self._heads = len(keys)

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        return self._first.padded(rows)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        latent, order, heads = self._latent, self._order, self._heads
        made = self._first(rows)
        made, kept = torch.split_with_sizes(made, (made.shape[1] - latent.kept_dim, latent.kept_dim), dim=1)
        result = rows.new_empty(len(rows), (heads + 1) * latent.kept_dim)
        queries, key = result[:, : -latent.kept_dim].view(len(rows), heads, -1), result[:, -latent.kept_dim :]
        order.put(order.latent, self._norm(kept[:, : latent.kv_lora_rank].contiguous()), key)
        order.put(order.turning, kept[:, latent.kv_lora_rank :], key)
        if latent.q_lora_rank:
            made = self._queries(self._query_norm(made.contiguous()))
        each = made.view(len(rows), heads, -1)
        self._absorbed(each, queries)
        turning = each[..., latent.qk_nope_head_dim :]
        order.put(order.turning, turning if latent.rope_factor == 1.0 else turning * latent.rope_factor, queries)
        return result

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + self(rows)


class LatentOutput:
    """What makes of gathered latents `[row, query_head * kept_dim]` the values of all heads, and multiplies these."""

    def __init__(self, latent: Latent, matrix: Linear, tensors: Tensors, kernels: Kernels | None) -> None:
        self._matrix = matrix
        expanding, order = _expanding(latent, tensors)[:, latent.qk_nope_head_dim :], HeadOrder(latent)
        values = expanding.new_zeros(*expanding.shape[:2], latent.kept_dim)
        order.put(order.latent, expanding, values)
        self._heads, self._value_dim = values.shape[:2]
        self._values = HeadMatrices(values, kernels)

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        return self._matrix.padded(rows)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._matrix(self._expanded(rows))

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._matrix.plus(self._expanded(rows), residual)

    def _expanded(self, rows: torch.Tensor) -> torch.Tensor:
        made = rows.new_empty(len(rows), self._heads * self._value_dim)
        self._values(rows.view(len(rows), self._heads, -1), made.view(len(rows), self._heads, -1))
        return made


def _expanding(latent: Latent, tensors: Tensors) -> torch.Tensor:
    """The matrices that make keys and values of a latent, `[head, key and value, kv_lora_rank]`."""
    return unpacked(tensors[EXPANDING]).view(-1, latent.expanded_dim, latent.kv_lora_rank)
