"""Attention by torch, on any device: from the projections of all rows to what each row gathered, with the KV cache
between.

Each sequence attends in calls of its own, so that no row's result depends on what else is in the batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from livescale.services.worker.engine.kv_store import KvStore, numbers
from livescale.services.worker.engine.masked_attention import Masking, attend_masked, attends_plainly
from livescale.services.worker.engine.parameters import padded, padded_count
from livescale.services.worker.engine.rope import RopeTable, turn
from livescale.services.worker.engine.rows import StepAttention
from livescale.services.worker.scheduling.batch import PROMPT_CUT, ScheduledChunk
from livescale.shared.messages.parameters import LayerKind

# On a CPU the bits of torch's attention depend on where its queries begin, modulo 16 bytes: rows of projections have a
# multiple of so many numbers.
ROW_STEP = 32


def use_math_kernels() -> None:
    """Choose torch's unfused attention kernels on the GPUs of this process, and sums in float32 for matrices as on
    CPUs.

    The fused kernels want alignments that views of the KV cache do not have.
    """
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


class AttentionCall(Protocol):
    """Consecutive rows of a step that attend in one call."""

    @property
    def rows(self) -> int:
        """The number of consecutive rows that this call is for."""

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Rotated queries `[row, kv_head, group, head_dim]` -> `[row, kv_head * group * head_dim]`."""


class AttentionBackend(Protocol):
    """The kernels that attend: it divides a step's rows into calls."""

    def of(self, chunks: Sequence[ScheduledChunk]) -> Sequence[AttentionCall]:
        """The calls for all rows of `chunks`, in the order of the rows."""

    def take_sinks(self, layer: int, sinks: torch.Tensor) -> None:
        """Learn the sinks `[query_head]` of a layer, before it runs."""


class TorchAttention:
    """Attention without compiled kernels, on any device. `backend` attends; `group` is query heads to a KV head.

    `ropes` has the table of each layer.
    """

    def __init__(self, store: KvStore, ropes: Sequence[RopeTable], group: int, backend: AttentionBackend) -> None:
        self._store = store
        self._ropes = ropes
        self._group = group
        self._backend = backend

    def take_sinks(self, layer: int, sinks: torch.Tensor) -> None:
        self._backend.take_sinks(layer, sinks)

    def over(self, chunks: Sequence[ScheduledChunk]) -> StepAttention:
        store, device = self._store, self._store.cache.device
        positions = [position for chunk in chunks for position in range(chunk.start, chunk.stop)]
        offsets = [chunk.blocks.start * store.block_tokens for chunk in chunks for _ in chunk.tokens]
        padding = [0] * (padded_count(len(positions), device.type) - len(positions))
        slots = torch.tensor(positions, device=device) + torch.tensor(offsets, device=device)
        at = torch.tensor(positions + padding, device=device)
        turns = {rope: rope.at(at) for rope in dict.fromkeys(self._ropes)}
        each = [turns[rope] for rope in self._ropes]
        return TorchStep(store, self._group, slots, each, self._backend.of(chunks))


class TorchBackend:
    """Torch's own kernels, for requests of up to `positions` tokens: a call for each cut of a prompt and each generated
    row."""

    def __init__(self, store: KvStore, group: int, positions: int, kinds: Sequence[LayerKind]) -> None:
        self._store = store
        self._group = group
        # The layers that attend otherwise than Llama's.
        self._masked = {layer: Masking(kind) for layer, kind in enumerate(kinds) if not attends_plainly(kind)}
        self._mask = CausalMask(positions, store.dtype, store.cache.device)

    def take_sinks(self, layer: int, sinks: torch.Tensor) -> None:
        self._masked[layer] = self._masked[layer]._replace(sinks=sinks.float().view(-1, self._group))

    def of(self, chunks: Sequence[ScheduledChunk]) -> list[AttentionCall]:
        return [call for chunk in chunks for call in self._calls_of(chunk)]

    def _calls_of(self, chunk: ScheduledChunk) -> Iterator[AttentionCall]:
        if chunk.whole:
            stretch = self._store.stretch(chunk.blocks, chunk.stop)
            yield ChunkAttention(stretch, chunk.stop, self._group, None, self._masked, causal=False)
        elif chunk.decode:
            for position in range(chunk.start, chunk.stop):
                yield RowAttention(self._store.stretch(chunk.blocks, position + 1), self._masked)
        else:
            for start in range(chunk.start, chunk.stop, PROMPT_CUT):
                stop = min(start + PROMPT_CUT, chunk.stop)
                stretch = self._store.stretch(chunk.blocks, stop)
                mask = self._mask.part(start, stop)
                yield ChunkAttention(stretch, stop - start, self._group, mask, self._masked)


class TorchStep:
    """The attention of one step.

    `slots` `[row]` are token slots in the KV cache. `turns` are each layer's cosines and sines of all rows, padding
    included.
    """

    def __init__(
        self,
        store: KvStore,
        group: int,
        slots: torch.Tensor,
        turns: Sequence[tuple[torch.Tensor, torch.Tensor]],
        calls: Sequence[AttentionCall],
    ) -> None:
        self._store = store
        self._slots = slots
        self._turns = turns
        self._calls = calls
        self._lengths = [call.rows for call in calls]
        _, self._parts, self._kv_heads, _, self._head_dim = store.cache.shape
        self._group = group

    def __call__(self, layer: int, projected: torch.Tensor) -> torch.Tensor:
        rows, group, kv_heads, head_dim = len(self._slots), self._group, self._kv_heads, self._head_dim
        if not projected.is_cuda and projected.shape[1] % ROW_STEP:
            projected = pad(projected, (0, -projected.shape[1] % ROW_STEP))
        features = (group + self._parts) * kv_heads * head_dim
        heads = projected[:, :features].view(len(projected), -1, head_dim)
        turn(heads[:, : (group + 1) * kv_heads], *self._turns[layer])
        queries, keys_values = torch.split_with_sizes(heads[:rows], (group * kv_heads, self._parts * kv_heads), dim=1)
        self._store.write(layer, self._slots, keys_values.view(rows, self._parts, kv_heads, -1))
        grouped = torch.split_with_sizes(queries.view(rows, kv_heads, -1, head_dim), self._lengths)
        results = [call.attend(layer, theirs) for call, theirs in zip(self._calls, grouped, strict=True)]
        return padded(torch.cat(results))


class ChunkAttention:
    """Rows of a prompt that attend together; the last of them sees all of `stretch` `[layer, part, kv_head, token,
    head_dim]`.

    `mask` `[row, token]` hides the future. It is None where rows and tokens are the same positions, and where rows see
    all of them, not being `causal`.
    """

    def __init__(
        self,
        stretch: torch.Tensor,
        rows: int,
        group: int,
        mask: torch.Tensor | None,
        masked: Mapping[int, Masking],
        *,
        causal: bool = True,
    ) -> None:
        self.rows = rows
        self._causal = causal and mask is None
        self._mask = mask
        self._masked = masked
        self._positions = range(stretch.shape[3] - rows, stretch.shape[3])
        # Repeated for every query head of the group without a copy.
        repeated = stretch.unsqueeze(3).expand(-1, -1, -1, group, -1, -1)
        self._keys_values = repeated.flatten(0, 1).unbind(0)
        self._parts = stretch.shape[1]

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        first = self._parts * layer
        kept = self._keys_values[first], self._keys_values[first + self._parts - 1]
        keys, values = (numbers(one[:, :1], queries.dtype).expand_as(one) for one in kept)
        heads_first = queries.permute(1, 2, 0, 3)
        if layer in self._masked:
            masking = self._masked[layer].across(2, 3)
            result = attend_masked(masking, heads_first, keys, values, self._positions)
            return result.permute(2, 0, 1, 3).reshape(self.rows, -1)
        result = scaled_dot_product_attention(heads_first, keys, values, self._mask, is_causal=self._causal)
        return result.permute(2, 0, 1, 3).reshape(self.rows, -1)


class RowAttention:
    """A generated position, which sees all of `stretch` `[layer, part, kv_head, token, head_dim]`."""

    rows = 1

    def __init__(self, stretch: torch.Tensor, masked: Mapping[int, Masking]) -> None:
        self._masked = masked
        self._positions = range(stretch.shape[3] - 1, stretch.shape[3])
        self._keys_values = stretch.unsqueeze(3).flatten(0, 1).unbind(0)
        self._parts = stretch.shape[1]

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        first = self._parts * layer
        kept = self._keys_values[first], self._keys_values[first + self._parts - 1]
        keys, values = (numbers(one, queries.dtype) for one in kept)
        # [kv_head, 1, group, head_dim]: the group is folded into the query axis, keys are read once for all of it.
        folded = queries.permute(1, 0, 2, 3)
        if layer in self._masked:
            masking = self._masked[layer].across(1, 3)
            return attend_masked(masking, folded, keys, values, self._positions).reshape(1, -1)
        return scaled_dot_product_attention(folded, keys, values).reshape(1, -1)


class CausalMask:
    """The masks for rows from cut to cut. Each is a part of one tensor: zeros, then a triangle that hides the
    future."""

    def __init__(self, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        self._positions = positions
        self._mask = torch.zeros(PROMPT_CUT, positions + PROMPT_CUT, dtype=dtype, device=device)
        self._mask[:, positions:].fill_(float("-inf")).triu_(1)

    def part(self, start: int, stop: int) -> torch.Tensor | None:
        """The mask of rows `start` to `stop` - 1 over tokens 0 to `stop` - 1; None where the kernels have a faster
        way."""
        if start == 0:
            return None
        return self._mask[: stop - start, self._positions - start : self._positions + stop - start]
