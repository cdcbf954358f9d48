"""The process of a worker: it chooses device and kernels, and starts the actor."""

import sys
import time

import structlog

from livescale.services.worker.actor import Worker
from livescale.services.worker.engine.heap import keep_freed_memory
from livescale.services.worker.engine.kernels.variants import choose_kernels
from livescale.services.worker.resources import ResourceMaker
from livescale.services.worker.runners import computes_on_cpu, runner_maker, use_of_gpu
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.memory.devices import CPU, NoDevice, choose_device, count_gpus
from livescale.shared.process.run import World, run_process

log = structlog.get_logger()


def main(settings: WorkerSettings) -> None:
    """Run a worker with these settings until it is stopped. Exits with a message where device or kernels cannot be
    had."""
    try:
        device = CPU if settings.engine == "modelled" else choose_device(settings.device, count_gpus())
        if device == CPU and settings.engine == "torch":
            keep_freed_memory()
        kernels = choose_kernels(settings.kernels, settings.threads) if computes_on_cpu(settings, device) else None
        make_runner = runner_maker(settings, device, use_of_gpu(settings, device), kernels, worked=time.thread_time)
    except (NoDevice, ValueError) as error:
        sys.exit(f"Error: {error}")

    def build(world: World) -> Worker:
        if kernels is not None:
            log.info("kernels_chosen", variant=kernels.variant, passed_over=kernels.passed_over)
        return Worker(world, settings, ResourceMaker.of(settings, lambda: make_runner(world.clock), device))

    run_process(settings, "worker", build)
