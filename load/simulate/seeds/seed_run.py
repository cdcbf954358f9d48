"""One run of a random system: it starts, is disturbed, and comes to rest."""

import asyncio
from collections.abc import Collection
from contextlib import suppress

from livescale.load.simulate.seeds.clients import Clients
from livescale.load.simulate.seeds.history import SeedFault, updated
from livescale.load.simulate.seeds.invariants import REST_SECONDS
from livescale.load.simulate.seeds.learn_models import learn_models
from livescale.load.simulate.seeds.lookout import Lookout
from livescale.load.simulate.seeds.reports import LastReports, copies
from livescale.load.simulate.seeds.rest import unrest
from livescale.load.simulate.seeds.system import SeedSystem
from livescale.load.simulate.seeds.troublemaker import Troublemaker
from livescale.load.simulate.seeds.watched import WatchedCluster
from livescale.load.simulate.start import register, until, workers_in
from livescale.shared.simulation.virtual_clock import machine_time

START_SECONDS = 120.0
START_LOOK_SECONDS = 0.25
REST_LOOK_SECONDS = 0.5


class SeedRun:
    """One run of a random system. `history` fills meanwhile."""

    def __init__(self, system: SeedSystem, cluster: WatchedCluster, tasks: asyncio.TaskGroup) -> None:
        self._system = system
        self._cluster = cluster
        self._tasks = tasks
        self.history = cluster.seen
        self._reports = LastReports(cluster)
        self._clients = Clients(cluster, system.asks)
        self._trouble = Troublemaker(cluster, self._clients, system.registered, system.seed)
        self._lookout = Lookout(cluster, self._clients, self._reports)

    @property
    def struck(self) -> list[SeedFault]:
        """The faults that have happened, with whom they befell."""
        return self._trouble.struck

    async def run(self) -> None:
        """Start the system, disturb it, and wait until it is at rest."""
        self._cluster.start_all()
        for spec in self._system.registered:
            await register(self._cluster, spec)
        if not self._system.early:
            await until(self._is_ready, START_SECONDS, START_LOOK_SECONDS)
        self.history.ready_at = machine_time()
        looking = self._tasks.create_task(self._lookout.run(), name="looks")
        clients = self._tasks.create_task(self._clients.run(), name="clients")
        await self._trouble.run(self._system.faults)
        self.history.calm_at = machine_time()
        await self._rest()
        for task in (looking, clients):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await clients
        await self._trouble.close()
        self.history.crashes = [f"{id} at {at:.2f} s: {describe(error)}" for at, id, error in self._trouble.crashes]
        self.history.answers = sorted(self._clients.answers, key=lambda answer: answer.number)

    async def _is_ready(self) -> bool:
        """Whether everything serves that is to serve without load."""
        await self._learn_models(())
        wanted = sum(spec.min_instances * spec.tensor_parallel_size for spec in self._system.specs)
        is_known = len(self.history.versions) == len(self._system.specs)
        return is_known and len(await workers_in(self._cluster, "serving")) >= wanted

    async def _learn_models(self, again: Collection[str]) -> None:
        """Learn the versions of models that are not known yet, and `again` of these."""
        specs = [one for one in self._system.specs if one.name in again or one.name not in self.history.versions]
        await learn_models(self._cluster, specs, self.history)

    async def _rest(self) -> None:
        """Wait until nothing is left to do, for as long as that may take."""
        history = self.history
        deadline = history.calm_at + REST_SECONDS
        while True:
            now = machine_time()
            for model in copies(self._reports.of_running()):
                history.copied_at.setdefault(model, now)
            await self._learn_models(updated(self.struck))
            lacking = [f"no copy of {name} is back" for name in history.versions if name not in history.copied_at]
            history.amiss = self._clients.missing() or await unrest(self._cluster, self._reports) or lacking
            if not history.amiss:
                history.rested_at = machine_time()
            if not history.amiss or now >= deadline:
                return
            await asyncio.sleep(REST_LOOK_SECONDS)


def describe(error: BaseException) -> str:
    """An error in a line; of a group its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
