"""The engine that a worker gets by its settings."""

import subprocess
import sys

import pytest

from livescale.services.worker.engine import paged_attention
from livescale.services.worker.engine.contract import NO_GPU_FEATURES, GpuFeatures
from livescale.services.worker.runners import computes_on_cpu, use_of_gpu
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.runtime.settings import EngineName


@pytest.mark.parametrize(("engine", "device", "computes"), [("torch", "cpu", True), ("torch", "cuda:0", False)])
def test_a_worker_on_a_cpu_has_kernels_for_one(engine: EngineName, device: str, computes: bool) -> None:
    assert computes_on_cpu(WorkerSettings(engine=engine), device) == computes
    assert not computes_on_cpu(WorkerSettings(engine="modelled"), device)


@pytest.mark.parametrize("found", [False, True])
def test_on_a_gpu_flashinfer_is_used_where_it_is_there_and_not_turned_down(
    found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_attention, "find_flashinfer", lambda: found)
    assert use_of_gpu(WorkerSettings(), "cpu") == NO_GPU_FEATURES
    assert use_of_gpu(WorkerSettings(), "cuda:1") == GpuFeatures(flashinfer=found, graphs=True)
    without = WorkerSettings(kernels="torch", cuda_graphs=False)
    assert use_of_gpu(without, "cuda:1") == NO_GPU_FEATURES


def test_a_worker_with_a_modelled_engine_has_no_torch() -> None:
    """It would take more memory than all else, and seconds to import."""
    program = """
import sys
from livescale.services.worker.runners import runner_maker
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.memory.devices import CPU
from livescale.shared.runtime.clock import SystemClock
runner_maker(WorkerSettings(engine="modelled"), CPU)(SystemClock())
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=240)
    assert done.stdout.strip() == "False"
