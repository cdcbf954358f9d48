"""LoRA adapters (Hu et al.): low-rank products that are added to those of a model's matrices, for some rows.

Rows are gathered by adapter, so that each adapter's matrices are multiplied once a step. The kernels are those of all
matrices: a row's bits depend neither on the other rows nor on their adapters. Each product of the model is rounded
before the adapter's is added. A layer that is one call of the compiled kernels stays one.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence

import torch

from livescale.services.worker.engine.contract import AdapterMissing
from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.matrices import LINEAR_NUMBERS, CompiledLinear, linear_of
from livescale.services.worker.engine.parameters import Linear, Tensors, block_tensors, part_of
from livescale.services.worker.scheduling.batch import ScheduledChunk
from livescale.shared.links.contract import View
from livescale.shared.messages.parameters import Manifest, ModelConfig
from livescale.shared.model.adapter_shards import adapter_bytes, adapter_slices
from livescale.shared.model.declaration.adapter import DOWN, UP, matrix_outputs

Names = tuple[str, ...]
# Matrices with the same input, which the compiled kernels multiply as one; in the order of `Map` of kernels.h.
JOINED: tuple[Names, ...] = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
# The same of shared experts, whose layers are never one call.
SHARED: tuple[Names, ...] = tuple(
    tuple(one.replace("mlp.", "mlp.shared_experts.") for one in mlp) for mlp in JOINED[2:]
)
# Torch's kernels multiply those of an MLP one by one.
APART: tuple[Names, ...] = (*JOINED[:2], *((one,) for names in (*JOINED[2:], *SHARED) for one in names))
RANK_STEP = 32  # of which the inputs of torch's products are a multiple; the rest are zeros


Part = tuple[torch.Tensor | None, torch.Tensor | None, int]  # A, B and the outputs of a matrix


class LowRank:
    """What an adapter adds to a linear map: one product with all of its A, then one with its B side by side."""

    def __init__(self, parts: Sequence[Part], kernels: Kernels | None) -> None:
        """`parts` has A `[rank, in]`, B `[out, rank]` and `out` of each matrix of the map, None where it has none."""
        downs = [down for down, _, _ in parts if down is not None]
        ranks, outputs = sum(map(len, downs)), sum(out for _, _, out in parts)
        rank = ranks if kernels is not None else -(-ranks // RANK_STEP) * RANK_STEP
        stacked = downs[0].new_zeros(rank, downs[0].shape[1])
        stacked[:ranks] = torch.cat(downs)
        diagonal = downs[0].new_zeros(outputs, rank)
        row = column = 0
        for down, up, out in parts:
            if down is not None and up is not None:
                diagonal[row : row + out, column : column + len(down)] = up
                column += len(down)
            row += out
        self._down = linear_of(stacked, kernels)
        self._up = linear_of(diagonal, kernels)

    def plus(self, rows: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
        """`product` `[row, out]` plus what the adapter makes of `rows` `[row, in]`. Any number of rows."""
        count = len(rows)
        made = self._up.plus(self._down(self._down.padded(rows)), self._up.padded(product))
        return made[:count]

    def numbers(self) -> tuple[int, ...]:
        """What fills `LowRank` of kernels.h. It is for compiled kernels."""
        assert isinstance(self._down, CompiledLinear)
        assert isinstance(self._up, CompiledLinear)
        return *self._down.numbers, *self._up.numbers


ADDS_NOTHING = (0,) * (2 * LINEAR_NUMBERS)  # as `LowRank` of kernels.h


class Adapter:
    """One adapter's matrices, by layer and by the first name of each linear map that it changes."""

    def __init__(self, config: ModelConfig, tensors: Tensors, kernels: Kernels | None) -> None:
        self._maps: dict[tuple[int, str], LowRank] = {}
        for layer in sorted({int(name.split(".")[2]) for name in tensors}):
            prefix = f"model.layers.{layer}."
            outs = matrix_outputs(config, layer)
            for names in APART if kernels is None else (*JOINED, *SHARED):
                here = [name for name in names if name in outs]
                parts = [
                    (tensors.get(f"{prefix}{name}{DOWN}"), tensors.get(f"{prefix}{name}{UP}"), outs[name])
                    for name in here
                ]
                if any(down is not None for down, _, _ in parts):
                    self._maps[layer, here[0]] = LowRank(parts, kernels)
        # What the compiled kernels read of it, `LowRank` of each map of each layer.
        self._numbers = array("q", () if kernels is None else self._each_map(config.num_hidden_layers))
        self.address = self._numbers.buffer_info()[0]

    def _each_map(self, layers: int) -> Iterator[int]:
        for layer in range(layers):
            for first, *_ in JOINED:
                added = self.find(layer, first)
                yield from ADDS_NOTHING if added is None else added.numbers()

    def find(self, layer: int, name: str) -> LowRank | None:
        """What it adds to the linear map of this name; None where it leaves that as it is."""
        return self._maps.get((layer, name))


Group = tuple[Adapter, torch.Tensor | slice | None]


class Adapters:
    """The adapters of one model, by version, and which rows of the step that runs use which of them."""

    def __init__(
        self, config: ModelConfig, kernels: Kernels | None, device: torch.device, shard: int = 0, shards: int = 1
    ) -> None:
        """`config` is that of the model as this rank computes it, rank `shard` of `shards`."""
        self._config = config
        self._shard = shard
        self._shards = shards
        self._kernels = kernels
        self._device = device
        self._adapters: dict[str, Adapter] = {}
        self._sizes: dict[str, int] = {}
        self.groups: list[Group] = []  # of the step that runs: rows, None for all of them
        self._rows: list[array[int]] = []  # the same for the compiled kernels, as `AdapterRows` of kernels.h
        self._numbers: array[int] = array("q")

    @property
    def sizes(self) -> Mapping[str, int]:
        """The bytes of each adapter that is here, by its version."""
        return dict(self._sizes)  # as others read it while steps run

    def add(self, manifest: Manifest, buffer: View) -> None:
        """Take this rank's part of an adapter, whose one block is in `buffer`. Nothing of the buffer is kept."""
        slices = adapter_slices(manifest, self._shard, self._shards)
        tensors = block_tensors(manifest.blocks[0], buffer, manifest.dtype)
        here = {name: part_of(tensor, slices[name]).to(self._device) for name, tensor in tensors.items()}
        self._adapters[manifest.version] = Adapter(self._config, here, self._kernels)
        self._sizes[manifest.version] = adapter_bytes(manifest, self._shards)

    def remove(self, version: str) -> None:
        """Forget an adapter. One that is not here is no error."""
        self._adapters.pop(version, None)
        self._sizes.pop(version, None)

    def begin(self, chunks: Sequence[ScheduledChunk]) -> None:
        """Note which rows use which adapter. Raises AdapterMissing."""
        self.groups, self._rows, self._numbers = [], [], array("q")
        places: dict[str, list[int]] = {}
        row = 0
        for chunk in chunks:
            if chunk.adapter is not None:
                places.setdefault(chunk.adapter, []).extend(range(row, row + len(chunk.tokens)))
            row += len(chunk.tokens)
        missing = places.keys() - self._adapters.keys()
        if missing:
            raise AdapterMissing(f"adapter {min(missing)} was not added")
        self.groups = [(self._adapters[one], _index(own, row, self._device)) for one, own in places.items()]
        self._rows = [array("q", own) for own in places.values()]
        for (adapter, _), own in zip(self.groups, self._rows, strict=True):
            self._numbers.extend((adapter.address, *own.buffer_info()))

    @property
    def numbers(self) -> tuple[int, int]:
        """The address of `AdapterRows` of kernels.h for the step that runs, and how many there are."""
        return self._numbers.buffer_info()[0], len(self.groups)


def _index(rows: list[int], count: int, device: torch.device) -> torch.Tensor | slice | None:
    """These rows of `count`, in the way in which they are taken fastest."""
    if len(rows) == count:
        return None
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, device=device)


class AdaptedLinear:
    """A linear map to whose product the adapters of a step's rows add theirs."""

    def __init__(self, base: Linear, adapters: Adapters, layer: int, name: str) -> None:
        self._base = base
        self._adapters = adapters
        self._layer = layer
        self._name = name

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        return self._base.padded(rows)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._adapted(rows, self._base(rows))

    def plus(self, rows: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._adapted(rows, self._base.plus(rows, residual))

    def _adapted(self, rows: torch.Tensor, product: torch.Tensor) -> torch.Tensor:
        for adapter, index in self._adapters.groups:
            added = adapter.find(self._layer, self._name)
            if added is None:
                continue
            if index is None:
                product = added.plus(rows, product)
            elif isinstance(index, slice):
                product[index] = added.plus(rows[index], product[index])
            else:
                made = added.plus(rows.index_select(0, index), product.index_select(0, index))
                product.index_copy_(0, index, made)
        return product
