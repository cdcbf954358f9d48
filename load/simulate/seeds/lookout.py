"""Notes what holds of a cluster, look by look, while it runs."""

import asyncio
from collections.abc import Iterable

from livescale.load.simulate.seeds.clients import Clients
from livescale.load.simulate.seeds.looks import (
    counted_for_nobody,
    counted_twice,
    loads_of_others,
    waits_for_dead,
    waits_for_told,
)
from livescale.load.simulate.seeds.policy_checks import policy_troubles
from livescale.load.simulate.seeds.reports import LastReports
from livescale.load.simulate.seeds.watched import WatchedCluster
from livescale.shared.simulation.virtual_clock import machine_time

POLICY_LOOK_SECONDS = 0.25


class Lasting:
    """Notes for how long at most each of several things has been so without a break: in `longest`."""

    def __init__(self, longest: dict[tuple[str, str], float]) -> None:
        self._longest = longest
        self._since: dict[tuple[str, str], float] = {}

    def note(self, things: Iterable[tuple[str, str]], now: float) -> None:
        """Note what is so now, and that nothing else is."""
        self._since = {one: self._since.get(one, now) for one in things}
        for one, since in self._since.items():
            self._longest[one] = max(self._longest.get(one, 0.0), now - since)


class Lookout:
    """Looks into a cluster at short intervals; what it finds goes to the cluster's history."""

    def __init__(self, cluster: WatchedCluster, clients: Clients, reports: LastReports) -> None:
        self._cluster = cluster
        self._clients = clients
        self._reports = reports
        self.history = cluster.seen
        self._right_at = self._once_at = 0.0
        self._awaited, self._told = Lasting(self.history.awaited), Lasting(self.history.told)
        self._gone = Lasting(self.history.gone_for)

    async def run(self) -> None:
        """Look every `POLICY_LOOK_SECONDS` until cancelled, and note what is amiss in the history."""
        while True:
            await asyncio.sleep(POLICY_LOOK_SECONDS)
            self._note_counts()
            now, history, cluster = machine_time(), self.history, self._cluster
            self._awaited.note(waits_for_dead(cluster), now)
            self._told.note(waits_for_told(cluster), now)
            self._gone.note(counted_for_nobody(cluster), now)
            troubles, strays = history.troubles, history.strays
            troubles += [found for found in policy_troubles(cluster) if found not in troubles]
            strays += [found for found in loads_of_others(cluster, history.loads) if found not in strays]

    def _note_counts(self) -> None:
        """Note how long a router has counted requests as running, although every client has its answer."""
        now, history = machine_time(), self.history
        can_be_wrong = history.calm_at and self._clients.are_complete
        if not (can_be_wrong and any(queue.running for queue in self._reports.queues())):
            self._right_at = now
        history.counted_for = max(history.counted_for, now - self._right_at)
        if not counted_twice(self._cluster):
            self._once_at = now
        history.twice_for = max(history.twice_for, now - self._once_at)
