"""What both sides of live scaling need of the worker they are in."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass

from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.limits import Limits
from livescale.services.worker.live.counts import LiveCounts
from livescale.services.worker.ranks.side import TensorParallel
from livescale.services.worker.serving import Serving
from livescale.services.worker.zigzag.tasks import Room
from livescale.shared.links.contract import Link
from livescale.shared.process.run import World


@dataclass(frozen=True)
class Parts:
    world: World
    link: Link
    runner: Runner
    serving: Serving
    tasks: asyncio.TaskGroup
    counts: LiveCounts
    ranks: TensorParallel

    def start(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None] | None:
        """As a task of the worker's; one that is ending begins nothing any more."""
        try:
            return self.tasks.create_task(work, name=name)
        except RuntimeError:
            work.close()
            return None

    def room(self, limits: Limits) -> Room:
        """Of what is worth running together."""
        return Room(limits.max_num_seqs, min(self.runner.joined_rows, limits.max_num_batched_tokens))

    @property
    def me(self) -> str:
        return self.world.info.id
