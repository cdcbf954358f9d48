"""The members of the system: processes join, are heard, fall silent and leave.

Deaths, restarts and stalls are remembered, and told when the registry is asked for incidents.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import get_args

from livescale.services.registry.incidents import Incidents
from livescale.services.registry.lease_news import LeaseNews
from livescale.services.registry.leases import HEARD_AGAIN, LeaseMoved, Leases, SpokeFalse, SpokeStale
from livescale.services.registry.pool import Pool
from livescale.services.registry.saved import SavedState
from livescale.shared.bus.contract import Context, Endpoint, Received
from livescale.shared.messages.membership import (
    Beat,
    HostReport,
    Join,
    Joined,
    Leave,
    Member,
    Report,
    RouterReport,
    ServiceName,
    WorkerReport,
    WorkerState,
)
from livescale.shared.messages.registry import AskIncidents, AskSnapshot, IncidentList, ProcessEnded, Snapshot, WasAway
from livescale.shared.process.run import World
from livescale.shared.subjects import AWAY, HEARTBEAT, INCIDENTS, JOIN, LEAVE, PROCESS, SNAPSHOT

TICK_SECONDS = 0.1
EPOCHS_RESERVED, EPOCHS_LEFT = 1000, 500


class Members:
    """Keeps the leases: whatever is heard of a process comes here, and what follows from it for others goes out.

    `check_join` refuses a process that may not join. What workers and hosts report that they hold goes on to the pool.
    `look_for_copies` is called after a death, as copies of models may be gone with the process, and where a process is
    heard again that seemed dead.
    """

    def __init__(
        self,
        world: World,
        leases: Leases,
        pool: Pool,
        saved: SavedState,
        check_join: Callable[[Join, list[Member]], None],
        look_for_copies: Callable[[], None],
    ) -> None:
        self._bus, self._clock = world.bus, world.clock
        self._leases = leases
        self._pool = pool
        self._saved = saved
        self._check_join = check_join
        self._look_for_copies = look_for_copies
        self._incidents = Incidents()
        self._news = LeaseNews(world)
        self._before: dict[str, Member] = {}
        self.endpoints = [
            Endpoint(JOIN, self._join),
            Endpoint(INCIDENTS, self._last_incidents),
            Endpoint(SNAPSHOT, self._snapshot),
        ]
        # Zeros are shown too, as an operator wants to be woken for them.
        world.telemetry.watch_gauge(
            "livescale_registry_members", "Processes that are alive, by service", ["service"], self._count_members
        )
        world.telemetry.watch_gauge(
            "livescale_registry_workers", "Workers that are alive, by state", ["state"], self._count_workers
        )

    def restore(self, members: Iterable[Member]) -> None:
        """Take over the members that an earlier registry knew."""
        known = list(members)
        # Its own lease died with the registry before this one.
        self._before = {one.id: one for one in known if one.service == "registry"}
        others = (one for one in known if one.service != "registry")
        self._leases.restore(others, self._clock.now(), self._saved.epochs)
        self._reserve_epochs()

    async def start(self, group: asyncio.TaskGroup) -> None:
        """Hear all processes and judge the silent ones, in tasks of `group`. Once this returns processes may join."""
        heartbeats, leaves = await self._bus.subscribe(HEARTBEAT), await self._bus.subscribe(LEAVE)
        aways, ends = await self._bus.subscribe(AWAY), await self._bus.subscribe(PROCESS)
        group.create_task(heartbeats.each(self._hear), name="heartbeats")
        group.create_task(leaves.each(self._left), name="leaves")
        group.create_task(aways.each(self._away), name="aways")
        group.create_task(ends.each(self._ended), name="ends")
        group.create_task(self._judge(), name="leases")

    async def _join(self, join: Join, context: Context) -> Joined:
        self._check_join(join, self._leases.members())
        before = self._leases.member(join.id) or self._before.pop(join.id, None)
        member, moves = self._leases.join(join, self._clock.now())
        if before is None or before.epoch != member.epoch:  # else it only asks once more
            self._incidents.joined(join.id, join.pid, before, self._clock.wall())
            self._pool.gone(join.id)
        for move in moves:
            self._announce(move)
        self._saved.put_member(member)
        self._reserve_epochs()
        return Joined(epoch=member.epoch)

    def _reserve_epochs(self) -> None:
        if self._saved.epochs - self._leases.last_epoch < EPOCHS_LEFT:
            self._saved.reserve_epochs(self._leases.last_epoch + EPOCHS_RESERVED)

    async def _last_incidents(self, ask: AskIncidents, context: Context) -> IncidentList:
        return IncidentList(incidents=self._incidents.last(ask.limit))

    async def _snapshot(self, ask: AskSnapshot, context: Context) -> Snapshot:
        return Snapshot(
            members=self._leases.members(),
            workers=self._pool.holds.workers(),
            hosts=self._pool.holds.hosts(),
            models=self._pool.entries(),
        )

    def _hear(self, received: Received[Report]) -> None:
        report = received.message
        for effect in self._leases.beat(report.service, report.id, report.epoch, self._clock.now()):
            self._announce(effect)
            if isinstance(effect, SpokeStale | SpokeFalse):
                return
        match report:
            case WorkerReport():
                self._pool.on_worker(report)
            case HostReport():
                self._pool.on_host(report)
            case Beat() | RouterReport():
                pass

    def _left(self, received: Received[Leave]) -> None:
        last = received.message
        for move in self._leases.leave(last.service, last.id, last.epoch):
            self._announce(move)

    def _away(self, received: Received[WasAway]) -> None:
        self._incidents.away(received.message, self._leases.members())

    def _ended(self, received: Received[ProcessEnded]) -> None:
        ended = received.message
        self._incidents.ended(ended.id, ended.reason, ended.at)

    async def _judge(self) -> None:
        while True:
            for move in self._leases.tick(self._clock.now()):
                self._announce(move)
            await asyncio.sleep(TICK_SECONDS)

    def _announce(self, effect: LeaseMoved | SpokeStale | SpokeFalse) -> None:
        self._news.tell(effect)
        if not isinstance(effect, LeaseMoved):
            return
        if effect.state == "dead":
            self._incidents.died(effect.id, effect.reason, self._clock.wall())
            self._pool.gone(effect.id)
            self._look_for_copies()
            self._saved.delete_member(effect.id)
        if effect.reason == HEARD_AGAIN:
            # It may have been cut off, and what it was asked to read lost: nobody would ask it again for a minute.
            self._pool.doubt_host(effect.id)
            self._look_for_copies()

    def _count_members(self) -> dict[tuple[str, ...], float]:
        living = Counter(one.service for one in self._leases.members() if one.lease != "dead")
        return {(service,): float(living[service]) for service in get_args(ServiceName)}

    def _count_workers(self) -> dict[tuple[str, ...], float]:
        states = Counter(report.state for report in self._pool.holds.workers())
        return {(state,): float(states[state]) for state in get_args(WorkerState)}
