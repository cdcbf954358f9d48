"""The worker process."""

from services.worker.actor import Worker
from services.worker.settings import WorkerSettings
from shared.links.open import open_link
from shared.process import World, run_process
from shared.transfer.door import open_door


def main(settings: WorkerSettings) -> None:
    def build(world: World) -> Worker:
        return Worker(world, settings, lambda: open_link(settings), lambda address: open_door(settings, address))

    run_process(settings, "worker", build)
