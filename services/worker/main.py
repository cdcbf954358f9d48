"""The worker process."""

import sys
from collections.abc import Callable

from services.worker.actor import Worker
from services.worker.engine.contract import PLAIN, OnGpu, Runner
from services.worker.engine.heap import keep_freed_memory
from services.worker.engine.kernels.contract import COMPILED, FLASHINFER, TORCH, choose_kernels
from services.worker.engine.modelled import ModelledRunner
from services.worker.settings import WorkerSettings
from shared.devices import CPU, NoDevice, choose_device, count_gpus
from shared.latency_file import find_latency
from shared.links.open import open_link
from shared.process import World, run_process
from shared.transfer.door import open_door
from shared.world import Clock


def main(settings: WorkerSettings) -> None:
    try:
        device = CPU if settings.engine == "modelled" else choose_device(settings.device, count_gpus())
        if device == CPU and settings.engine == "torch":
            keep_freed_memory()
        used = use_of_gpu(settings, device)
        make_runner, kernels = runner_maker(settings, device, used), kernels_name(settings, device, used)
    except (NoDevice, ValueError) as error:
        sys.exit(f"Error: {error}")
    on_gpu = device != CPU
    memory = device if on_gpu else "host"

    def build(world: World) -> Worker:
        return Worker(
            world,
            settings,
            lambda: make_runner(world.clock),
            lambda: open_link(settings, memory),
            # What others have in the host's memory is of no use on a GPU before it is copied there.
            lambda address: None if on_gpu else open_door(settings, address),
            device,
            kernels,
        )

    run_process(settings, "worker", build)


def use_of_gpu(settings: WorkerSettings, device: str) -> OnGpu:
    """Nothing on a CPU."""
    if device == CPU:
        return PLAIN
    from services.worker.engine.flashinfer_kernels import find_flashinfer  # torch again

    return OnGpu(settings.kernels != "torch" and find_flashinfer(), settings.cuda_graphs)


def runner_maker(settings: WorkerSettings, device: str, used: OnGpu = PLAIN) -> Callable[[Clock], Runner]:
    """Makes the engine that is set. Raises ValueError for a latency that is not there or says nothing."""
    if settings.engine == "modelled":
        latency = find_latency(settings.engine_profile)
        memory = settings.kv_bytes, settings.block_size
        return lambda clock: ModelledRunner(*memory, latency, settings.engine_speed, clock, settings.host_kv_bytes)

    from services.worker.engine.runner import EngineRunner  # of torch, which takes seconds and much memory to import

    sizes, more = (settings.kv_bytes, settings.block_size), (settings.host_kv_bytes, settings.arena_bytes)
    return lambda clock: EngineRunner(*sizes, settings.threads, device, settings.kernels, *more, used)


def kernels_name(settings: WorkerSettings, device: str, used: OnGpu = PLAIN) -> str | None:
    """Of those that it computes with: workers whose names differ have different bits. Raises ValueError for kernels
    that are not there."""
    if settings.engine == "modelled":
        return None
    if device != CPU:
        return FLASHINFER if used.flashinfer else TORCH
    kernels = choose_kernels(settings.kernels)
    return TORCH if kernels is None else f"{COMPILED}-{kernels.BITS}"
