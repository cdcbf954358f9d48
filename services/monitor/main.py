"""The monitor's process."""

from services.monitor.actor import Monitor
from services.monitor.settings import MonitorSettings
from shared.process import run_process


def main(settings: MonitorSettings) -> None:
    run_process(settings, "monitor", lambda world: Monitor(world, settings))
