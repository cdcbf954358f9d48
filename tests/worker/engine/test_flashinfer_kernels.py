"""When FlashInfer is used, and what it is told. Its kernels are played: they need a GPU."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from livescale.services.worker.engine import flashinfer_kernels
from livescale.services.worker.engine.attention import TorchParts
from livescale.services.worker.engine.flashinfer_kernels import choose_parts, find_flashinfer, fits_flashinfer
from livescale.services.worker.engine.kv_store import KvStore, allocate_kv_memory
from livescale.services.worker.engine.paged_attention import PagedParts
from tests.worker.engine.models import BLOCK_TOKENS, checkpointed
from tests.worker.engine.test_paged_attention import PIECES


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
    assert isinstance(choose_parts(store(), 3, 256, flashinfer=True), TorchParts)
    monkeypatch.setattr(flashinfer_kernels, "fits_flashinfer", lambda cache: True)
    assert isinstance(choose_parts(store(), 3, 256, flashinfer=False), TorchParts)
    assert isinstance(choose_parts(store(), 3, 256, flashinfer=True), PagedParts)


def test_no_plan_depends_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_kernels, "fits_flashinfer", lambda cache: True)
    choose_parts(store(), 3, 256, flashinfer=True).of(PIECES)
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
    monkeypatch.setattr(flashinfer_kernels, "fits_flashinfer", lambda cache: True)
    module = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=NoCompiler)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    with pytest.raises(
        RuntimeError, match=r"kernels: FlashInfer has none for heads of 20 .* or choose --kernels torch"
    ):
        choose_parts(store(), 3, 256, flashinfer=True)
