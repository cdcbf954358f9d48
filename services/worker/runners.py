"""Which engine a worker has: by its settings, the device, and what may be used there."""

from collections.abc import Callable

from livescale.services.worker.engine.contract import NO_GPU_FEATURES, GpuFeatures, Runner, zeros
from livescale.services.worker.engine.kernels.variants import KernelChoice
from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.engine.modelled_states import StateMemory
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.memory.devices import CPU
from livescale.shared.model.latency import find_latency
from livescale.shared.runtime.clock import Clock


def computes_on_cpu(settings: WorkerSettings, device: str) -> bool:
    """Whether torch or compiled kernels compute on the CPU."""
    return device == CPU and settings.engine == "torch"


def use_of_gpu(settings: WorkerSettings, device: str) -> GpuFeatures:
    """What the engine may use on a GPU besides torch's kernels; nothing on a CPU."""
    if device == CPU:
        return NO_GPU_FEATURES
    from livescale.services.worker.engine.paged_attention import find_flashinfer  # torch again

    return GpuFeatures(settings.kernels != "torch" and find_flashinfer(), settings.cuda_graphs)


def runner_maker(
    settings: WorkerSettings,
    device: str,
    used: GpuFeatures = NO_GPU_FEATURES,
    kernels: KernelChoice | None = None,
    new_memory: Callable[[int], StateMemory] = zeros,
    worked: Callable[[], float] = lambda: 0.0,
) -> Callable[[Clock], Runner]:
    """A function that makes the engine of these settings. A modelled one exports KV into `new_memory`, and makes up
    for the seconds that its thread has `worked` between steps.

    Raises ValueError for a latency that does not exist or is not valid.
    """
    if settings.engine == "modelled":
        latency = find_latency(settings.engine_profile)
        sizes, host_bytes = (settings.kv_bytes, settings.block_size), settings.host_kv_bytes
        speed = settings.engine_speed
        return lambda clock: ModelledRunner(*sizes, latency, speed, clock, host_bytes, new_memory, worked)

    from livescale.services.worker.engine.runner import (
        EngineRunner,  # of torch, which takes seconds and much memory to import
    )

    sizes, kv_bytes = (settings.kv_bytes, settings.block_size), settings.host_kv_bytes
    return lambda clock: EngineRunner(*sizes, settings.threads, device, kernels, kv_bytes, used)
