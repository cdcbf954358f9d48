"""The mode zigzag-ilp: equation (1) of BlitzScale 5.2 says how many layers of each request the target runs."""

import asyncio
from collections.abc import Sequence
from itertools import chain, islice

import structlog

from livescale.services.worker.live.optimum import Forecast, Optimum, solve
from livescale.services.worker.live.policy import BatchBudget, LiveTask, Planned, QueuedTask
from livescale.services.worker.live.simulation import simulate
from livescale.shared.messages.transfers import Load

MOST_BATCHES = 12  # at once
# By then the best found is taken. Within the gap the forecast is no better.
LIMIT_SECONDS, RELATIVE_GAP = 0.04, 0.01

log = structlog.get_logger()


def forecast(command: Load, began: float) -> Forecast:
    """Return a forecast of this load. The embedding comes with the first layer, and the head is a layer of its own."""
    first, second, *others = (block.size_bytes for block in command.manifest.blocks)
    return Forecast([first + second, *others], began)


def better_than_the_queue(tasks: Sequence[LiveTask], ready: Sequence[float], limit_seconds: float) -> Optimum | None:
    """Return the best that was found in time, or None where a simulation of the queue alone is as good."""
    optimum = solve(tasks, ready, limit_seconds, RELATIVE_GAP)
    rule = Planned(dict(zip([task.id for task in tasks], optimum.on_target, strict=True)))
    return optimum if simulate(tasks, ready, rule).mean_latency < simulate(tasks, ready).mean_latency else None


class LayerPlanner:
    """How many layers of each request the target is to run, planned again whenever other requests wait.

    Requests are planned in batches of what runs together (`budget`). Those that there is no plan for run in zigzag.
    """

    def __init__(self, seen: Forecast, budget: BatchBudget, limit_seconds: float = LIMIT_SECONDS) -> None:
        self.seen = seen
        self._budget = budget
        self._limit_seconds = limit_seconds
        self._planned: set[str] = set()  # tasks that were planned, including those that the plan left to the queue
        self._on_target: dict[str, int] = {}

    async def plan(self, waiting: Sequence[LiveTask], now: float) -> Planned | None:
        """Return a plan for the first of these tasks, or None where none of them is new or too little was seen."""
        batches = list(islice(self._budget.batches([QueuedTask(task) for task in waiting]), MOST_BATCHES))
        ids = [[entry.task.id for entry in batch] for batch in batches]
        ready, seconds = self.seen.ready(now), self.seen.layer_seconds(1)
        if ready is None or seconds is None or self._planned.issuperset(chain(*ids)):
            return None
        # Ids that sort as they wait.
        rows = (sum(entry.task.rows for entry in batch) for batch in batches)
        tasks = [LiveTask(f"{place:02}", 0.0, count * seconds) for place, count in enumerate(rows)]
        try:
            optimum = await asyncio.to_thread(better_than_the_queue, tasks, ready, self._limit_seconds)
        except RuntimeError as error:
            log.warning("no_optimum", error=str(error))
            optimum = None
        self._take(ids, optimum)
        return Planned(self._on_target)

    def _take(self, ids: Sequence[Sequence[str]], optimum: Optimum | None) -> None:
        self._planned.update(chain(*ids))
        for id in chain(*ids):
            self._on_target.pop(id, None)
        if optimum is None:
            log.info("live_unplanned", batches=len(ids))
            return
        for batch, layers in zip(ids, optimum.on_target, strict=True):
            self._on_target |= dict.fromkeys(batch, layers)
        mean_seconds = round(optimum.mean_latency, 4)
        log.info("live_planned", layers=optimum.on_target, mean_seconds=mean_seconds, proven=optimum.proven)
