"""What an engine does on a GPU, done on a CPU: rows in slabs, layers by what was captured of them, pages.

What a graph is made of is played by the job itself; that CUDA replays it is for `tests/cuda`.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from livescale.services.worker.engine import engine as engine_module
from livescale.services.worker.engine import paged_attention, parameters
from livescale.services.worker.engine.contract import NO_GPU_FEATURES, GpuFeatures
from livescale.services.worker.engine.cuda_graphs import CudaCapture, Job
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kv_store import KvStore
from livescale.services.worker.engine.paged_attention import PagedBackend
from livescale.services.worker.engine.parameters import GPU_SLAB_ROWS, TorchLinear, padded, padded_count
from livescale.shared.messages.parameters import LayerKind
from tests.worker.engine.configs import CONFIGS
from tests.worker.engine.greedy import are_greedy
from tests.worker.engine.models import checkpointed, reference_logits
from tests.worker.engine.test_paged_attention import GatheringKernels
from tests.worker.requests import random_prompt, submit
from tests.worker.serving import Served, serve

PROMPTS = {str(length): random_prompt(length, length) for length in (1, 40, 129, 300)}


def paged(store: KvStore, group: int, positions: int, flashinfer: bool, kinds: Sequence[LayerKind]) -> PagedBackend:
    return PagedBackend(store, GatheringKernels(), GatheringKernels())


class CountedCapture:
    """Does the job once, as a capture does, and again when it is replayed."""

    def __init__(self, device: torch.device) -> None:
        self.replays = 0

    def __call__(self, job: Job) -> Job:
        job()

        def replay() -> None:
            self.replays += 1
            job()

        return replay


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "CPU", "no device")
    monkeypatch.setattr(engine_module, "CudaCapture", CountedCapture)


def engine_of(name: str, on_gpu: GpuFeatures) -> TorchEngine:
    return checkpointed(name).engine(on_gpu=on_gpu)


def served_by(engine: TorchEngine) -> Served:
    return serve(engine, ((0, submit(key, prompt, max_tokens=8)) for key, prompt in PROMPTS.items()))


@pytest.mark.parametrize("pages", [False, True], ids=["sequences", "pages"])
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_right(name: str, pages: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if pages:
        monkeypatch.setattr(paged_attention, "choose_backend", paged)
    served = served_by(engine_of(name, GpuFeatures(graphs=True)))
    for key, prompt in PROMPTS.items():
        tokens = served.tokens[key]
        logits = reference_logits(name, prompt, tokens)
        assert are_greedy(logits, tokens), key


def test_graphs_change_no_bit() -> None:
    engine = engine_of("qwen2-tied", GpuFeatures(graphs=True))
    graphed, without = served_by(engine), served_by(engine_of("qwen2-tied", NO_GPU_FEATURES))
    for key in PROMPTS:
        assert torch.equal(graphed.rows(key), without.rows(key)), key


def test_steps_of_one_slab_are_replayed_and_longer_ones_are_not() -> None:
    engine = engine_of("qwen2-tied", GpuFeatures(graphs=True))
    assert engine._graphs is not None
    capture: Any = engine._graphs.capture
    serve(engine, [(0, submit("long", random_prompt(1, GPU_SLAB_ROWS + 1), max_tokens=1))])
    assert capture.replays == 0
    serve(engine, [(0, submit("short", random_prompt(2, GPU_SLAB_ROWS), max_tokens=3))])
    assert capture.replays == 3 * 2 * engine.store.layers


@pytest.mark.parametrize(("rows", "slabs"), [(1, 1), (128, 1), (129, 2), (2_048, 16)])
def test_on_a_gpu_matrices_see_whole_slabs(rows: int, slabs: int) -> None:
    assert padded_count(rows, "cuda") == len(padded(torch.ones(rows, 3))) == slabs * GPU_SLAB_ROWS


def test_rows_are_multiplied_a_slab_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        seen.append(len(rows))
        return torch.nn.functional.linear(rows, weight, bias)

    monkeypatch.setattr(parameters, "linear", linear)
    matrices = {"q.weight": torch.eye(4)[:3], "k.weight": torch.eye(4)}
    rows = torch.randn(3 * GPU_SLAB_ROWS, 4)
    torch.testing.assert_close(TorchLinear(matrices, "q", "k")(rows), torch.cat((rows[:, :3], rows), dim=1))
    assert seen == [GPU_SLAB_ROWS] * 6


class FakeCuda:
    """CUDA as a list of what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stream(self, device: torch.device | None = None) -> "FakeCuda":
        return self

    def wait_stream(self, other: "FakeCuda") -> None:
        self.told.append("wait")

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        self.told.append(f"begin {pool} {capture_error_mode}")

    def capture_end(self) -> None:
        self.told.append("end")

    def replay(self) -> None:
        self.told.append("replay")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, fake.stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", fake.stream)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    return fake


def test_a_job_is_done_once_before_it_is_captured_beside_what_other_threads_do(cuda: FakeCuda) -> None:
    replay = CudaCapture(torch.device("cuda:0"))(lambda: cuda.told.append("job"))
    assert cuda.told == ["wait", "job", "begin pool thread_local", "job", "end", "wait"]
    replay()
    assert cuda.told[6:] == ["replay"]


def test_a_job_that_fails_ends_its_capture(cuda: FakeCuda) -> None:
    jobs: list[Callable[[], None]] = [lambda: None]
    with pytest.raises(IndexError):
        CudaCapture(torch.device("cuda:0"))(lambda: jobs.pop()())
    assert cuda.told[-1] != "wait"
    assert "end" in cuda.told
