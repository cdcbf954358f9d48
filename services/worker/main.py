"""The worker process."""

from services.worker.actor import Worker
from services.worker.settings import WorkerSettings
from shared.links.open import open_link
from shared.process import run_process


def main(settings: WorkerSettings) -> None:
    run_process(settings, "worker", lambda world: Worker(world, settings, lambda: open_link(settings)))
