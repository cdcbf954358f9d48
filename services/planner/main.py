"""The planner's process."""

from services.planner.actor import Planner
from services.planner.settings import PlannerSettings
from shared.process import run_process


def main(settings: PlannerSettings) -> None:
    run_process(settings, "planner", lambda world: Planner(world, settings))
