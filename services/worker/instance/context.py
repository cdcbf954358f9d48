"""Where a worker is, and by what its parts compute and reach other workers."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass

from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.instance.spans import WorkerSpans
from livescale.shared.bus.contract import Bus
from livescale.shared.links.contract import Link
from livescale.shared.messages.requests import Submit, arrived, leaving
from livescale.shared.messages.transfers import Node
from livescale.shared.process.run import World
from livescale.shared.runtime.clock import Clock


@dataclass(frozen=True)
class WorkerContext:
    """What every part of a worker that talks to other workers needs, whatever model is served.

    `link` counts its bytes as traffic of serving, tasks of `tasks` end with the worker, and `runner` is its engine.
    """

    world: World
    link: Link
    tasks: asyncio.TaskGroup
    runner: Runner

    @property
    def me(self) -> str:
        """This worker's id, by which other workers know it."""
        return self.world.info.id

    @property
    def bus(self) -> Bus:
        return self.world.bus

    @property
    def spans(self) -> WorkerSpans:
        return WorkerSpans.of(self.world.telemetry, self.world.clock)

    @property
    def clock(self) -> Clock:
        return self.world.clock

    def node(self, link: Link | None = None) -> Node:
        """This worker as others reach it, by `link` where that is another one than the context's."""
        return Node(id=self.me, place="worker", address=(link or self.link).address)

    def arrived(self, request: Submit) -> Submit:
        """The request as it was received just now."""
        return arrived(request, self.clock.wall())

    def leaving(self, request: Submit) -> Submit:
        """The request as it is sent now."""
        return leaving(request, self.clock.wall())

    def start(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None] | None:
        """Run `work` as a task of the worker. Returns None, with nothing begun, where the worker is ending."""
        try:
            return self.tasks.create_task(work, name=name)
        except RuntimeError:
            work.close()
            return None


async def end_task(task: asyncio.Task[None] | None) -> None:
    """Cancel a task, if there is one, and return once it has ended."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
