"""A layer, whose kind says what it has besides what a layer of Llama has."""

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property

import torch

from livescale.services.worker.engine.adapters import AdaptedLinear, Adapters
from livescale.services.worker.engine.experts import SharedExperts, WeighedGated, make_experts
from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.latent import LatentOutput, LatentProjections
from livescale.services.worker.engine.matrices import Activated, Gated, join_gated, make_linear
from livescale.services.worker.engine.norms import Norm, norm_of
from livescale.services.worker.engine.parameters import Linear, Tensors, unpacked
from livescale.services.worker.engine.rows import Rows
from livescale.services.worker.engine.tensor_parallel import Ranks, ResidualLinear, added, row_parallel
from livescale.shared.messages.parameters import LayerKind, ModelConfig

ADDED_BIASES = ("self_attn.o_proj.bias", "mlp.down_proj.bias")
EXPERT_BIASES = ("mlp.experts.down_proj.bias",)  # where each rank has a part of each expert

MakeLinear = Callable[..., Linear]  # of the names of matrices with the same input


class NormedHeads:
    """A matrix of queries, keys and values, of which queries and keys are normalized.

    `widths` are how many numbers of a row are queries, keys and values.
    """

    def __init__(self, projection: Linear, queries: Norm, keys: Norm, widths: Sequence[int]) -> None:
        self._projection = projection
        self._queries = queries
        self._keys = keys
        self._widths = widths

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        return self._projection.padded(rows)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        queries, keys, values = torch.split_with_sizes(self._projection(rows), self._widths, dim=1)
        return torch.cat((self._queries(queries), self._keys(keys), values), dim=1)

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + self(rows)


class EachHead:
    """RMSNorm of each head of a row by itself."""

    def __init__(self, norm: Norm, head_dim: int) -> None:
        self._norm = norm
        self._head_dim = head_dim

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._norm(hidden.reshape(-1, self._head_dim)).view(hidden.shape)


class AcrossRanks:
    """RMSNorm of rows of which each of several ranks has a part. All parts have the same size."""

    def __init__(self, weight: torch.Tensor, epsilon: float, ranks: Ranks) -> None:
        self._weight = weight
        self._epsilon = epsilon
        self._ranks = ranks

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.float()
        # Row by row, as torch computes the last rows of a tensor by other instructions.
        squares = torch.stack([row.square().mean() for row in wide])
        mean = added(self._ranks.gather(squares)) / self._ranks.size
        return (wide * torch.rsqrt(mean + self._epsilon).unsqueeze(1) * self._weight).to(hidden.dtype)


class NormedOutput:
    """A matrix whose product is normalized, or multiplied by `factor`, before it is added to the residual."""

    def __init__(self, matrix: ResidualLinear, norm: Norm, factor: float) -> None:
        self._matrix = matrix
        self._norm = norm
        self._factor = factor

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        product = self._norm(self._matrix(rows))
        return product if self._factor == 1.0 else product * self._factor

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + self(rows)


class NormedSum:
    """A matrix whose product is added to the residual, and their sum is normalized."""

    def __init__(self, matrix: ResidualLinear, norm: Norm) -> None:
        self._matrix = matrix
        self._norm = norm

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._norm(self._matrix(rows))

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._norm(self._matrix.plus(rows, residual))


def unchanged(rows: torch.Tensor) -> torch.Tensor:
    """What stands before experts, which do all that an MLP does."""
    return rows


class Layer:
    """Decoder layer `index`, made of the tensors of its block. With `ranks` it is the part of rank `rank`."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        tensors: Tensors,
        kernels: Kernels | None,
        ranks: Ranks | None,
        rank: int = 0,
    ) -> None:
        prefix = f"model.layers.{index}."
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        if kernels is None:
            own = {name: unpacked(tensor) for name, tensor in own.items()}
        if rank:  # a bias of what ranks add together is added once
            once = ADDED_BIASES + EXPERT_BIASES * (config.experts is not None and config.experts.cut_inside)
            own = {name: tensor for name, tensor in own.items() if not name.endswith(once)}
        self.index = index
        self._parts = Parts(config, config.kind(index), own, kernels, ranks)
        self._take(self._parts.linear)

    def adapted(self, adapters: Adapters) -> "Layer":
        """The same layer with what the adapters of rows add to its matrices."""
        made = copy(self)
        made._take(lambda *names: AdaptedLinear(self._parts.linear(*names), adapters, self.index, names[0]))
        return made

    def _take(self, linear: MakeLinear) -> None:
        parts = self._parts
        self._input_norm = parts.norm("input_layernorm")
        self._qkv = parts.projections(linear)
        self._output = parts.output(parts.gathering(linear), "self_attn")
        self.is_parallel = parts.is_parallel
        self._mlp_norm = self._input_norm if self.is_parallel else parts.norm("post_attention_layernorm")
        self._gated, self._down = parts.mlp(linear)

    @property
    def parts(self) -> tuple[Norm, Linear, ResidualLinear, Norm, Gated, ResidualLinear]:
        """The layer's parts in the order in which rows pass them; attention stands between the second and the third."""
        return self._input_norm, self._qkv, self._output, self._mlp_norm, self._gated, self._down

    def __call__(self, hidden: torch.Tensor, rows: Rows) -> torch.Tensor:
        """`[row, hidden]` -> `[row, hidden]`, padding included. Stores keys and values in the KV cache."""
        return self.finish(rows.attend(self.index, self.project(hidden)), hidden)

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[row, hidden]` -> queries, keys and values `[row, feature]`, without their rotation."""
        return self._qkv(self._input_norm(hidden))

    def finish(self, attended: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """What each row gathered, `[row, query_head * head_dim]`, and the layer's input `hidden` -> `[row, hidden]`."""
        if self.is_parallel:
            features = self._gated(self._mlp_norm(hidden))  # first, as the sum may take the place of `hidden`
            return self._down.plus(features, self._output.plus(attended, hidden))
        hidden = self._output.plus(attended, hidden)
        return self._down.plus(self._gated(self._mlp_norm(hidden)), hidden)


class Parts:
    """Makes the parts of a layer of this `kind` from its tensors. What the kind lacks costs nothing."""

    def __init__(
        self, config: ModelConfig, kind: LayerKind, tensors: Tensors, kernels: Kernels | None, ranks: Ranks | None
    ) -> None:
        self._config = config
        self._kind = kind
        self._tensors = tensors
        self._kernels = kernels
        self._ranks = ranks
        self._made: dict[tuple[str, ...], Linear] = {}
        self.is_parallel = kind.parallel

    def linear(self, *names: str) -> Linear:
        """Make matrices with the same input one linear map, once."""
        if names not in self._made:
            self._made[names] = make_linear(self._tensors, *names, kernels=self._kernels)
        return self._made[names]

    @cached_property
    def _experts(self) -> Linear:
        assert self._config.experts is not None
        return make_experts(self._config.experts, self._tensors, self._kernels, self._kind.activation)

    def norm(self, name: str) -> Norm:
        """The norm of this name, or one that does nothing where there is none."""
        return norm_of(self._config, self._tensors, name, self._kernels)

    def projections(self, linear: MakeLinear) -> Linear:
        """Make the matrix of queries, keys and values, with norms of heads where the kind has them."""
        if self._config.latent is not None:
            return LatentProjections(self._config.latent, linear, self._tensors, self._kernels)
        kind, head_dim = self._kind, self._config.head_dim
        made = linear(*(f"self_attn.{name}_proj" for name in "qkv"))
        if kind.head_norm == "none":
            return made
        q, kv = self._config.num_attention_heads * head_dim, self._config.num_key_value_heads * head_dim
        return NormedHeads(made, self._heads("q_norm"), self._heads("k_norm"), (q, kv, kv))

    def gathering(self, linear: MakeLinear) -> Linear:
        """Make the matrix that follows attention; a latent one first turns what was gathered into values."""
        made = linear("self_attn.o_proj")
        if self._config.latent is None:
            return made
        return LatentOutput(self._config.latent, made, self._tensors, self._kernels)

    def _heads(self, name: str) -> Norm:
        norm = self.norm(f"self_attn.{name}")
        if self._kind.head_norm == "head":
            return EachHead(norm, self._config.head_dim)
        if self._ranks is None:
            return norm
        weight = self._tensors[f"self_attn.{name}.weight"].float() + self._config.norm_offset
        return AcrossRanks(weight, self._config.rms_norm_eps, self._ranks)

    def mlp(self, linear: MakeLinear) -> tuple[Gated, ResidualLinear]:
        """What makes features of rows, and what is added to the residual. Experts do all of it in the second."""
        kind, experts = self._kind, self._config.experts
        if kind.experts and experts is not None:
            made = self._experts
            if experts.shared_features:
                shared = "mlp.shared_experts"
                gated = self._gated(linear, shared)
                if experts.shared_gate:
                    gated = WeighedGated(gated, linear("mlp.shared_expert_gate"))
                made = SharedExperts(made, gated, linear(f"{shared}.down_proj"))
            return unchanged, self.output(made, "mlp")
        return self._activated(linear), self.output(linear("mlp.down_proj"), "mlp")

    def _gated(self, linear: MakeLinear, place: str) -> Gated:
        gate, up = f"{place}.gate_proj", f"{place}.up_proj"
        return join_gated(linear, gate, up, self._kernels, self._kind.activation)

    def _activated(self, linear: MakeLinear) -> Gated:
        """The matrices of the MLP before the last one, and what stands between."""
        activation = self._kind.activation
        if self._kind.gated:
            return self._gated(linear, "mlp")
        return Activated(linear("mlp.up_proj"), activation, self._kernels)

    def output(self, matrix: Linear, place: str) -> ResidualLinear:
        """A matrix whose product is added to the residual, with the norm of this place."""
        made = row_parallel(matrix, self._ranks)
        factor = self._kind.residual_scale
        if self._kind.norms_sum:
            return NormedSum(made, self.norm(f"{place}.sum_layernorm"))
        if self._kind.norms_after or factor != 1.0:
            return NormedOutput(made, self.norm(f"{place}.output_layernorm"), factor)
        return made
