"""The process of a worker: it chooses device and kernels, and starts the actor."""

import sys
from collections.abc import Callable

import structlog

from livescale.services.worker.actor import Worker
from livescale.services.worker.engine.contract import NO_GPU_FEATURES, GpuFeatures, Runner
from livescale.services.worker.engine.heap import keep_freed_memory
from livescale.services.worker.engine.kernels.variants import KernelChoice, choose_kernels
from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.engine.modelled_memory import zeros
from livescale.services.worker.resources import ResourceMaker
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.links.contract import View
from livescale.shared.memory.devices import CPU, NoDevice, choose_device, count_gpus
from livescale.shared.model.latency import find_latency
from livescale.shared.process.run import World, run_process
from livescale.shared.runtime.clock import Clock

log = structlog.get_logger()


def main(settings: WorkerSettings) -> None:
    """Run a worker with these settings until it is stopped. Exits with a message where device or kernels cannot be
    had."""
    try:
        device = CPU if settings.engine == "modelled" else choose_device(settings.device, count_gpus())
        if device == CPU and settings.engine == "torch":
            keep_freed_memory()
        kernels = choose_kernels(settings.kernels, settings.threads) if computes_on_cpu(settings, device) else None
        make_runner = runner_maker(settings, device, use_of_gpu(settings, device), kernels)
    except (NoDevice, ValueError) as error:
        sys.exit(f"Error: {error}")

    def build(world: World) -> Worker:
        if kernels is not None:
            log.info("kernels_chosen", variant=kernels.variant, passed_over=kernels.passed_over)
        return Worker(world, settings, ResourceMaker.of(settings, lambda: make_runner(world.clock), device))

    run_process(settings, "worker", build)


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
    new_memory: Callable[[int], View] = zeros,
) -> Callable[[Clock], Runner]:
    """A function that makes the engine of these settings. A modelled one exports KV into `new_memory`.

    Raises ValueError for a latency that does not exist or is not valid.
    """
    if settings.engine == "modelled":
        latency = find_latency(settings.engine_profile)
        sizes, host_bytes = (settings.kv_bytes, settings.block_size), settings.host_kv_bytes
        return lambda clock: ModelledRunner(*sizes, latency, settings.engine_speed, clock, host_bytes, new_memory)

    from livescale.services.worker.engine.runner import (
        EngineRunner,  # of torch, which takes seconds and much memory to import
    )

    sizes, kv_bytes = (settings.kv_bytes, settings.block_size), settings.host_kv_bytes
    return lambda clock: EngineRunner(*sizes, settings.threads, device, kernels, kv_bytes, used)
