"""A worker's process before it is one."""

import subprocess
import sys

import pytest

from livescale.services.worker import main as worker_main
from livescale.services.worker.engine import paged_attention
from livescale.services.worker.engine.contract import NO_GPU_FEATURES, GpuFeatures
from livescale.services.worker.engine.kernels import variants
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.runtime.settings import EngineName


def test_a_device_that_is_not_there_ends_it_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_main, "count_gpus", lambda: 1)
    with pytest.raises(SystemExit, match=r"^Error: device: cuda:3 was asked for and CUDA shows .* cuda:0 to cuda:0;"):
        worker_main.main(WorkerSettings(device="cuda:3"))


def test_a_latency_that_is_not_there_ends_it_with_a_sentence() -> None:
    with pytest.raises(SystemExit, match=r"^Error: engine-profile: there is no 'llama9'; give a file"):
        worker_main.main(WorkerSettings(engine="modelled", engine_profile="llama9"))


def test_kernels_that_are_not_there_end_it_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "find_compiled", lambda: None)
    with pytest.raises(SystemExit, match=r"^Error: kernels: compiled cannot be used here: .*\. Choose --kernels auto"):
        worker_main.main(WorkerSettings(device="cpu", kernels="compiled"))


@pytest.mark.parametrize(("engine", "device", "computes"), [("torch", "cpu", True), ("torch", "cuda:0", False)])
def test_a_worker_on_a_cpu_has_kernels_for_one(engine: EngineName, device: str, computes: bool) -> None:
    assert worker_main.computes_on_cpu(WorkerSettings(engine=engine), device) == computes
    assert not worker_main.computes_on_cpu(WorkerSettings(engine="modelled"), device)


@pytest.mark.parametrize("found", [False, True])
def test_on_a_gpu_flashinfer_is_used_where_it_is_there_and_not_turned_down(
    found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_attention, "find_flashinfer", lambda: found)
    assert worker_main.use_of_gpu(WorkerSettings(), "cpu") == NO_GPU_FEATURES
    assert worker_main.use_of_gpu(WorkerSettings(), "cuda:1") == GpuFeatures(flashinfer=found, graphs=True)
    without = WorkerSettings(kernels="torch", cuda_graphs=False)
    assert worker_main.use_of_gpu(without, "cuda:1") == NO_GPU_FEATURES


def test_a_worker_with_a_modelled_engine_has_no_torch() -> None:
    """It would take more memory than all else, and seconds to import."""
    program = """
import sys
from livescale.services.worker.main import runner_maker
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.memory.devices import CPU
from livescale.shared.runtime.clock import SystemClock
runner_maker(WorkerSettings(engine="modelled"), CPU)(SystemClock())
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False"
