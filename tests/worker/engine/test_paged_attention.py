"""Attention over pages: which rows see which blocks, and that they gather what attention of a sequence does.

When FlashInfer is used, and what it is told. Its kernels are played: they need a GPU.
"""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from livescale.services.worker.engine import paged_attention
from livescale.services.worker.engine.attention import TorchBackend
from livescale.services.worker.engine.kv_store import KvStore, allocate_kv_memory
from livescale.services.worker.engine.paged_attention import (
    KeysValues,
    PagedBackend,
    Pages,
    RowSpan,
    choose_backend,
    find_flashinfer,
    fits_flashinfer,
    pages_of,
    spans_of,
)
from livescale.services.worker.scheduling.batch import ScheduledChunk
from livescale.shared.messages.parameters import LLAMA_LAYER
from tests.worker.engine.models import checkpointed
from tests.worker.requests import BLOCK_TOKENS, CONTEXT

GROUP = 3  # of the model below
KINDS = [LLAMA_LAYER]


class GatheringKernels:
    """Each span by torch, over a copy of its pages."""

    def __init__(self) -> None:
        self.rows = 0
        self.pages = Pages(*(torch.zeros(0) for _ in range(3)))

    def plan(self, rows: int, pages: Pages) -> None:
        self.rows, self.pages = rows, pages

    def run(self, queries: torch.Tensor, keys_values: KeysValues) -> torch.Tensor:
        return torch.cat([self._span(*span, keys_values) for span in enumerate(torch.split(queries, self.rows))])

    def _span(self, index: int, queries: torch.Tensor, keys_values: KeysValues) -> torch.Tensor:
        blocks = self.pages.blocks[self.pages.ends[index] : self.pages.ends[index + 1]]
        tokens = (len(blocks) - 1) * BLOCK_TOKENS + int(self.pages.last[index])
        keys, values = (pages[blocks].transpose(0, 1).flatten(1, 2)[:, :tokens] for pages in keys_values)
        sees = torch.ones(self.rows, tokens, dtype=torch.bool).tril(tokens - self.rows)
        heads_first = queries.transpose(0, 1)
        return scaled_dot_product_attention(heads_first, keys, values, sees, enable_gqa=True).transpose(0, 1)


def chunk(start: int, rows: int, block: int, decode: bool = False) -> ScheduledChunk:
    return ScheduledChunk("a", (7,) * rows, start, range(block, block + 20), decode)


CHUNKS = (
    chunk(30, 1, block=0, decode=True),
    chunk(128, 21, block=20),
    chunk(0, 8, block=40),
    chunk(5, 3, block=60, decode=True),
    chunk(16, 1, block=80),
)


def test_prompts_are_cut_into_spans_and_what_is_left_over_goes_row_by_row() -> None:
    assert list(spans_of(CHUNKS)) == [
        RowSpan(first=0, rows=1, tokens=31, block=0),
        RowSpan(first=1, rows=8, tokens=136, block=20),
        RowSpan(first=9, rows=8, tokens=144, block=20),
        *(RowSpan(first=17 + row, rows=1, tokens=145 + row, block=20) for row in range(5)),
        RowSpan(first=22, rows=8, tokens=8, block=40),
        *(RowSpan(first=30 + row, rows=1, tokens=6 + row, block=60) for row in range(3)),
        RowSpan(first=33, rows=1, tokens=17, block=80),
    ]


def test_a_span_has_the_blocks_of_its_tokens_and_what_it_sees_of_the_last() -> None:
    spans = [RowSpan(0, 1, tokens=16, block=3), RowSpan(1, 1, tokens=17, block=8), RowSpan(2, 1, tokens=40, block=0)]
    pages = pages_of(spans, block_tokens=16)
    assert pages.ends.tolist() == [0, 1, 3, 6]
    assert pages.blocks.tolist() == [3, 8, 9, 0, 1, 2]
    assert pages.last.tolist() == [16, 1, 8]
    assert {numbers.dtype for numbers in pages} == {torch.int32}


@pytest.mark.parametrize("chunks", [CHUNKS, CHUNKS[:1], CHUNKS[2:3]], ids=["mixed", "decode", "prompt"])
def test_rows_gather_over_pages_what_they_gather_over_their_sequence(chunks: tuple[ScheduledChunk, ...]) -> None:
    manifest = checkpointed("llama3-scaled-tied").manifest
    store = KvStore(allocate_kv_memory(1 << 20), manifest.config, "float32", BLOCK_TOKENS)
    torch.manual_seed(2)
    store.cache.normal_()
    rows = sum(len(one.tokens) for one in chunks)
    queries = torch.randn(rows, 2, GROUP, 20)
    (paged,) = PagedBackend(store, GatheringKernels(), GatheringKernels()).of(chunks)
    assert paged.rows == rows
    for layer in range(store.layers):
        parts = TorchBackend(store, GROUP, CONTEXT, KINDS).of(chunks)
        split = torch.split_with_sizes(queries, [part.rows for part in parts])
        expected = torch.cat([part.attend(layer, theirs) for part, theirs in zip(parts, split, strict=True)])
        torch.testing.assert_close(paged.attend(layer, queries), expected)


class FakeWrapper:
    """Keeps what it was told."""

    made: list["FakeWrapper"] = []  # noqa: RUF012

    def __init__(self, workspace: torch.Tensor, layout: str, backend: str) -> None:
        self.layout, self.backend = layout, backend
        self.plans: list[tuple[Any, ...]] = []
        self.options: dict[str, Any] = {}
        FakeWrapper.made.append(self)

    def plan(self, *tables: Any, **options: Any) -> None:
        self.plans.append(tables)
        self.options = options


class NoCompiler(FakeWrapper):
    def plan(self, *tables: Any, **options: Any) -> None:
        raise FileNotFoundError("nvcc")


@pytest.fixture(autouse=True)
def _played(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=FakeWrapper)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(FakeWrapper, "made", [])
    event = SimpleNamespace(synchronize=lambda: None, record=lambda stream: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


def store() -> KvStore:
    return KvStore(allocate_kv_memory(1 << 20), checkpointed("llama3-scaled-tied").manifest.config, "bfloat16", 16)


def cache(**fields: Any) -> Any:
    return SimpleNamespace(
        **{"dtype": torch.bfloat16, "shape": (2, 2, 8, 64, 128), "is_cuda": True, "device": "cuda:0", **fields}
    )


@pytest.mark.parametrize(
    "fields", [{"dtype": torch.float32}, {"shape": (2, 2, 8, 64, 80)}, {"is_cuda": False, "device": "cpu"}]
)
def test_caches_that_it_has_no_kernels_for_do_not_fit(fields: dict[str, Any]) -> None:
    assert fits_flashinfer(cache())
    assert not fits_flashinfer(cache(**fields))


def test_gpus_without_bfloat16_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not fits_flashinfer(cache())


def test_it_is_found_where_it_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_flashinfer()
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    assert not find_flashinfer()


def test_where_it_does_not_fit_or_is_not_wanted_torch_attends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(choose_backend(store(), 3, 256, flashinfer=True, kinds=KINDS), TorchBackend)
    monkeypatch.setattr(paged_attention, "fits_flashinfer", lambda cache: True)
    assert isinstance(choose_backend(store(), 3, 256, flashinfer=False, kinds=KINDS), TorchBackend)
    assert isinstance(choose_backend(store(), 3, 256, flashinfer=True, kinds=KINDS), PagedBackend)


def test_no_plan_depends_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "fits_flashinfer", lambda cache: True)
    choose_backend(store(), 3, 256, flashinfer=True, kinds=KINDS).of(CHUNKS)
    one, several = FakeWrapper.made
    queries, ends, blocks, last, *shape = several.plans[-1]
    assert queries.tolist() == [0, 8, 16, 24]
    assert (ends.tolist(), last.tolist(), len(blocks)) == ([0, 9, 18, 19], [8, 16, 8], 19)
    assert shape == [6, 2, 20, BLOCK_TOKENS]  # query heads, KV heads, head_dim, page
    assert one.plans[-1][0].tolist() == list(range(11))
    for wrapper in (one, several):
        assert (wrapper.layout, wrapper.backend) == ("HND", "fa2")
        assert wrapper.options == {"causal": True, "q_data_type": torch.bfloat16, "disable_split_kv": True}


def test_kernels_are_asked_for_before_there_are_requests_and_refused_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(paged_attention, "fits_flashinfer", lambda cache: True)
    module = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=NoCompiler)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    with pytest.raises(
        RuntimeError, match=r"kernels: FlashInfer has none for heads of 20 .* or choose --kernels torch"
    ):
        choose_backend(store(), 3, 256, flashinfer=True, kinds=KINDS)
