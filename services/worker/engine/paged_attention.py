"""Attention over the KV cache as pages: the rows of a step in two calls a layer, however many sequences there are.

Rows of prompts attend from cut to cut, generated ones and the ends of prompts one by one. So all spans of a call have
as many rows, always: kernels that choose how they work by that number choose the same for a row in any batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch

from livescale.services.worker.batch import PROMPT_CUT, Piece
from livescale.services.worker.engine.attention import Part
from livescale.services.worker.engine.kv_store import KvStore

KeysValues = tuple[torch.Tensor, torch.Tensor]


class Span(NamedTuple):
    """Rows `first` .. `first + rows` of a step, of one sequence; the last sees `tokens` tokens, from `block` on."""

    first: int
    rows: int
    tokens: int
    block: int


class Pages(NamedTuple):
    """Where the tokens of each span are, in int32: `blocks` `[ends[-1]]`, span i's from `ends[i]` to `ends[i + 1]`, the
    last of them with `last[i]` tokens."""

    ends: torch.Tensor
    blocks: torch.Tensor
    last: torch.Tensor


class PagedKernels(Protocol):
    """Of one model; planned once a step and run once a layer."""

    def plan(self, rows: int, pages: Pages) -> None:
        """For spans of `rows` rows each. The plan before is gone."""

    def run(self, queries: torch.Tensor, keys_values: KeysValues) -> torch.Tensor:
        """`[row, query_head, head_dim]` over two of `[block, kv_head, token, head_dim]` -> `[row, query_head,
        head_dim]`. The last row of a span sees all of its tokens, each other one token less than the next."""


class PagedParts:
    """By kernels for spans of `one` row and of `several`. What it gives is of use until it is asked again."""

    def __init__(self, store: KvStore, one: PagedKernels, several: PagedKernels) -> None:
        layers, _, kv_heads, _, head_dim = store.cache.shape
        self._device = store.cache.device
        self._block_tokens = store.block_tokens
        self._kernels = {1: one, PROMPT_CUT: several}
        paged = store.cache.view(layers, 2, kv_heads, store.blocks, store.block_tokens, head_dim).transpose(2, 3)
        self._caches: list[KeysValues] = [(keys, values) for keys, values in paged]

    def of(self, pieces: Sequence[Piece]) -> list[Part]:
        spans, calls = list(spans_of(pieces)), []
        for rows, kernels in self._kernels.items():
            alike = [span for span in spans if span.rows == rows]
            if alike:
                kernels.plan(rows, pages_of(alike, self._block_tokens))
                calls.append((kernels, torch.tensor(list(rows_of(alike)), device=self._device)))
        return [PagedAttention(sum(span.rows for span in spans), calls, self._caches)]


class PagedAttention:
    """All rows of a step. `calls`: the kernels and the rows that they are for."""

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


def spans_of(pieces: Iterable[Piece]) -> Iterator[Span]:
    """In the order of their rows."""
    first = 0
    for piece in pieces:
        start = piece.start
        while start < piece.stop:
            is_whole = not piece.decode and start + PROMPT_CUT <= piece.stop
            rows = PROMPT_CUT if is_whole else 1
            yield Span(first, rows, start + rows, piece.blocks.start)
            start, first = start + rows, first + rows


def rows_of(spans: Iterable[Span]) -> Iterator[int]:
    for span in spans:
        yield from range(span.first, span.first + span.rows)


def pages_of(spans: Sequence[Span], block_tokens: int) -> Pages:
    """Blocks of a sequence follow each other."""
    counts = [-(-span.tokens // block_tokens) for span in spans]
    blocks = [torch.arange(span.block, span.block + count) for span, count in zip(spans, counts, strict=True)]
    last = [(span.tokens - 1) % block_tokens + 1 for span in spans]
    ends = torch.tensor([0, *counts]).cumsum(0)
    return Pages(ends.int(), torch.cat(blocks).int(), torch.tensor(last, dtype=torch.int32))
