"""What both sides of live scaling need of the worker they are in."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass

from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.live.tasks import BatchBudget
from livescale.services.worker.metrics import LiveCounts
from livescale.services.worker.scheduling.limits import SchedulerLimits
from livescale.services.worker.serving import ServingLoop
from livescale.services.worker.tensor_parallel.group import TensorParallelGroup
from livescale.shared.links.contract import Link
from livescale.shared.process.run import World


@dataclass(frozen=True)
class Parts:
    world: World
    link: Link
    runner: Runner
    serving: ServingLoop
    tasks: asyncio.TaskGroup
    counts: LiveCounts
    ranks: TensorParallelGroup

    def start(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None] | None:
        """As a task of the worker's; one that is ending begins nothing any more."""
        try:
            return self.tasks.create_task(work, name=name)
        except RuntimeError:
            work.close()
            return None

    def room(self, limits: SchedulerLimits) -> BatchBudget:
        """Of what is worth running together."""
        return BatchBudget(limits.max_num_seqs, min(self.runner.joined_rows, limits.max_num_batched_tokens))

    @property
    def me(self) -> str:
        return self.world.info.id
