"""The mode zigzag-ilp: how many layers the target runs of each request is what equation (1) of BlitzScale 5.2 says."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from services.worker.zigzag.forecast import Forecast
from services.worker.zigzag.ilp import solve
from services.worker.zigzag.rules import Planned
from services.worker.zigzag.tasks import Task
from shared.messages.transfers import Load

MOST_TASKS = 12  # at once: the program is solved in tens of milliseconds

log = structlog.get_logger()


@dataclass(frozen=True)
class Waiting:
    """A request of which no layer was run yet."""

    id: str
    rows: int


def forecast(command: Load, began: float) -> Forecast:
    """The embedding comes with the first layer, the head is a layer of its own."""
    first, second, *others = (block.size_bytes for block in command.manifest.blocks)
    return Forecast([first + second, *others], began)


class Optimum:
    """Plans again whenever others wait than those planned for. What there is no plan for runs in zigzag."""

    def __init__(self, seen: Forecast) -> None:
        self.seen = seen
        self._on_target: dict[str, int] = {}

    async def plan(self, waiting: Sequence[Waiting], now: float) -> Planned | None:
        """For the first of these; None where there is nothing new to plan, or not enough was seen."""
        planned = waiting[:MOST_TASKS]
        ready, seconds = self.seen.ready(now), self.seen.layer_seconds(1)
        if ready is None or seconds is None or all(one.id in self._on_target for one in planned):
            return None
        # Ids that sort as they wait.
        tasks = [Task(f"{place:02}", 0.0, one.rows * seconds) for place, one in enumerate(planned)]
        try:
            optimum = await asyncio.to_thread(solve, tasks, ready)
        except RuntimeError as error:
            log.warning("no_optimum", error=str(error))
            return None
        self._on_target |= {one.id: layers for one, layers in zip(planned, optimum.on_target, strict=True)}
        log.info("live_planned", layers=optimum.on_target, mean_seconds=round(optimum.mean_latency, 4))
        return Planned(self._on_target)
