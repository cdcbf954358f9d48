"""The process of the monitor: it starts the actor with its settings."""

from livescale.services.monitor.actor import Monitor
from livescale.services.monitor.settings import MonitorSettings
from livescale.shared.process.run import run_process


def main(settings: MonitorSettings) -> None:
    run_process(settings, "monitor", lambda world: Monitor(world, settings))
