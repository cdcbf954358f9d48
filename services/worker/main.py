"""The worker process."""

import sys

from services.worker.actor import Worker
from services.worker.settings import WorkerSettings
from shared.devices import CPU, NoDevice, choose_device, count_gpus
from shared.links.open import open_link
from shared.process import World, run_process
from shared.transfer.door import open_door


def main(settings: WorkerSettings) -> None:
    try:
        device = choose_device(settings.device, count_gpus())
    except NoDevice as error:
        sys.exit(f"Error: {error}")
    on_gpu = device != CPU
    memory = device if on_gpu else "host"

    def build(world: World) -> Worker:
        return Worker(
            world,
            settings,
            lambda: open_link(settings, memory),
            # What others have in the host's memory is of no use on a GPU before it is copied there.
            lambda address: None if on_gpu else open_door(settings, address),
            device,
        )

    run_process(settings, "worker", build)
