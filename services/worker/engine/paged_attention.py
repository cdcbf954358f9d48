"""Attention over the KV cache as pages: the rows of a step take two calls a layer, for any number of sequences.

Rows of prompts attend from cut to cut; generated rows and the ends of prompts attend one by one. So all spans of a call
always have the same number of rows. Kernels that choose their method by that number then choose the same for a row in
any batch.

FlashInfer's kernels do this in bfloat16 on a GPU, where `flashinfer-python` is installed. A row has the same bits as
alone: they choose tiles by the mean number of rows of a span, which is the same for all spans here. No sequence is
split (`disable_split_kv`), as that depends on the batch; few and long contexts are slower for it. This is written
against flashinfer-python 0.7.2 and has not yet run on a GPU.
"""

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import torch

from livescale.services.worker.engine.attention import (
    AttentionBackend,
    AttentionCall,
    TorchAttention,
    TorchBackend,
)
from livescale.services.worker.engine.kv_store import KvStore
from livescale.services.worker.engine.masked_attention import attends_plainly
from livescale.services.worker.engine.rope import RopeTable
from livescale.services.worker.scheduling.batch import PROMPT_CUT, ScheduledChunk
from livescale.shared.messages.parameters import LayerKind

KeysValues = tuple[torch.Tensor, torch.Tensor]


class RowSpan(NamedTuple):
    """Rows `first` to `first + rows - 1` of a step, all of one sequence.

    The last of them sees `tokens` tokens, from block `block` on.
    """

    first: int
    rows: int
    tokens: int
    block: int


class Pages(NamedTuple):
    """Where the tokens of each span lie, in int32.

    Span i has the `blocks` from `ends[i]` to `ends[i + 1]`, and the last of these holds `last[i]` of its tokens.
    """

    ends: torch.Tensor
    blocks: torch.Tensor
    last: torch.Tensor


class PagedKernels(Protocol):
    """Attention kernels over pages, for one model. They are planned once a step and run once a layer."""

    def plan(self, rows: int, pages: Pages) -> None:
        """Prepare for spans of `rows` rows each. This replaces the plan before."""

    def run(self, queries: torch.Tensor, keys_values: KeysValues) -> torch.Tensor:
        """`[row, query_head, head_dim]` -> `[row, query_head, head_dim]`, over two of `[block, kv_head, token,
        head_dim]`.

        The last row of a span sees all of its tokens, each other one token less than the next.
        """


class PagedBackend:
    """A backend of two kernels: for spans of `one` row and of `several`. A step's calls are valid until the next
    step's."""

    def __init__(self, store: KvStore, one: PagedKernels, several: PagedKernels) -> None:
        layers, _, kv_heads, _, head_dim = store.cache.shape
        self._device = store.cache.device
        self._block_tokens = store.block_tokens
        self._kernels = {1: one, PROMPT_CUT: several}
        paged = store.cache.view(layers, 2, kv_heads, store.blocks, store.block_tokens, head_dim).transpose(2, 3)
        self._caches: list[KeysValues] = [(keys, values) for keys, values in paged]

    def take_sinks(self, layer: int, sinks: torch.Tensor) -> None:
        raise NotImplementedError("layers with sinks attend by torch's kernels")

    def of(self, chunks: Sequence[ScheduledChunk]) -> list[AttentionCall]:
        spans, calls = list(spans_of(chunks)), []
        for rows, kernels in self._kernels.items():
            alike = [span for span in spans if span.rows == rows]
            if alike:
                kernels.plan(rows, pages_of(alike, self._block_tokens))
                calls.append((kernels, torch.tensor(list(rows_of(alike)), device=self._device)))
        return [PagedAttention(sum(span.rows for span in spans), calls, self._caches)]


class PagedAttention:
    """Attention of all rows of a step. `calls` are kernels with the rows that they are for."""

    def __init__(
        self, rows: int, calls: Sequence[tuple[PagedKernels, torch.Tensor]], caches: Sequence[KeysValues]
    ) -> None:
        self.rows = rows
        self._calls = calls
        self._caches = caches

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        heads = queries.flatten(1, 2)
        result = heads.new_empty(heads.shape)
        for kernels, rows in self._calls:
            result[rows] = kernels.run(heads[rows], self._caches[layer])
        return result.flatten(1)


def spans_of(chunks: Iterable[ScheduledChunk]) -> Iterator[RowSpan]:
    """Divide the rows of `chunks` into spans, in their order: whole cuts of prompts, and single rows."""
    first = 0
    for chunk in chunks:
        start = chunk.start
        while start < chunk.stop:
            is_whole = not chunk.decode and start + PROMPT_CUT <= chunk.stop
            rows = PROMPT_CUT if is_whole else 1
            yield RowSpan(first, rows, start + rows, chunk.blocks.start)
            start, first = start + rows, first + rows


def rows_of(spans: Iterable[RowSpan]) -> Iterator[int]:
    """Yield the numbers of the rows of all these spans."""
    for span in spans:
        yield from range(span.first, span.first + span.rows)


def pages_of(spans: Sequence[RowSpan], block_tokens: int) -> Pages:
    """Where the tokens of these spans lie. A sequence's blocks follow each other."""
    counts = [-(-span.tokens // block_tokens) for span in spans]
    blocks = [torch.arange(span.block, span.block + count) for span, count in zip(spans, counts, strict=True)]
    last = [(span.tokens - 1) % block_tokens + 1 for span in spans]
    ends = torch.tensor([0, *counts]).cumsum(0)
    return Pages(ends.int(), torch.cat(blocks).int(), torch.tensor(last, dtype=torch.int32))


HEAD_DIMS = (64, 128, 256)
BFLOAT16_GPU = (8, 0)  # the first that compute in it
WORKSPACE_BYTES = 1 << 20  # for sequences that are split


class FlashInferKernels:
    """FlashInfer over caches with the shape of `store`; `group` is query heads to a KV head."""

    def __init__(self, store: KvStore, group: int) -> None:
        flashinfer: Any = import_module("flashinfer")
        _, _, kv_heads, _, head_dim = store.cache.shape
        self._device, self._dtype = store.cache.device, store.cache.dtype
        self._shape = group * kv_heads, kv_heads, head_dim, store.block_tokens
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
        # `HND`: in a page the tokens of a head lie together.
        self._wrapper: Any = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND", backend="fa2")
        self._planned = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def plan(self, rows: int, pages: Pages) -> None:
        """Prepare for spans of `rows` rows.

        Raises RuntimeError and OSError where FlashInfer has no kernels for this shape and cannot compile them.
        """
        # The plan before is copied to the GPU from memory that is written anew: it may still be on its way.
        self._planned.synchronize()
        queries = torch.arange(len(pages.last) + 1, dtype=torch.int32) * rows
        self._wrapper.plan(queries, *pages, *self._shape, causal=True, q_data_type=self._dtype, disable_split_kv=True)
        self._planned.record(torch.cuda.current_stream(self._device))

    def run(self, queries: torch.Tensor, keys_values: KeysValues) -> torch.Tensor:
        result: torch.Tensor = self._wrapper.run(queries, keys_values)
        return result


def find_flashinfer() -> bool:
    """Whether FlashInfer is installed. It is imported, which takes seconds."""
    try:
        import_module("flashinfer")
    except ImportError:
        return False
    return True


def fits_flashinfer(cache: torch.Tensor) -> bool:
    """Whether FlashInfer has kernels for such a KV cache, `[layer, part, ..., head_dim]`, of keys and values apart."""
    if cache.shape[1] != 2 or cache.dtype != torch.bfloat16 or cache.shape[-1] not in HEAD_DIMS or not cache.is_cuda:
        return False
    return torch.cuda.get_device_capability(cache.device) >= BFLOAT16_GPU


def choose_backend(
    store: KvStore, group: int, positions: int, flashinfer: bool, kinds: Sequence[LayerKind]
) -> AttentionBackend:
    """FlashInfer where that is wanted and fits, else torch's kernels, for requests of up to `positions` tokens.

    `kinds` has the kind of each layer; FlashInfer is used where all attend as Llama's do.

    Raises RuntimeError where FlashInfer fits and has no kernels.
    """
    if not (flashinfer and fits_flashinfer(store.cache) and all(map(attends_plainly, kinds))):
        return TorchBackend(store, group, positions, kinds)
    one, several = FlashInferKernels(store, group), FlashInferKernels(store, group)
    try:
        # Kernels are found, or compiled, now: no request waits for it.
        one.plan(1, pages_of([RowSpan(first=0, rows=1, tokens=1, block=0)], store.block_tokens))
    except (RuntimeError, OSError) as error:
        raise RuntimeError(
            f"kernels: FlashInfer has none for heads of {store.cache.shape[-1]} and cannot compile them: {error}; "
            "install flashinfer-jit-cache for this CUDA, or choose --kernels torch"
        ) from error
    return PagedBackend(store, one, several)


def choose_attention(
    store: KvStore,
    ropes: Sequence[RopeTable],
    group: int,
    positions: int,
    flashinfer: bool,
    kinds: Sequence[LayerKind],
) -> TorchAttention:
    """Attention without compiled kernels, by the backend that `choose_backend` chooses."""
    return TorchAttention(store, ropes, group, choose_backend(store, group, positions, flashinfer, kinds))
