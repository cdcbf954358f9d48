"""The members of the system: processes join, are heard, fall silent and leave.

Deaths, restarts and stalls are remembered, and told when the registry is asked for incidents.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import get_args

import structlog

from livescale.services.registry.incidents import Incidents
from livescale.services.registry.leases import HEARD_AGAIN, LEFT, LeaseMoved, Leases, SpokeFalse, SpokeStale
from livescale.services.registry.pool import Pool
from livescale.services.registry.saved import SavedState
from livescale.shared.bus.contract import Context, Endpoint, Received, Subscription
from livescale.shared.messages.membership import (
    Beat,
    HostReport,
    Join,
    Joined,
    LeaseChanged,
    LeaseState,
    Leave,
    Member,
    Report,
    RouterReport,
    ServiceName,
    Stale,
    WorkerReport,
    WorkerState,
)
from livescale.shared.messages.registry import AskIncidents, AskSnapshot, IncidentList, ProcessEnded, Snapshot, WasAway
from livescale.shared.process.run import World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.rate_limited_log import RateLimitedLog
from livescale.shared.subjects import AWAY, DEATH, INCIDENTS, JOIN, LEASE, PROCESS, SNAPSHOT, STALE

TICK_SECONDS = 0.1
EPOCHS_RESERVED, EPOCHS_LEFT = 1000, 500

# What happens after a death, for readers of the log.
THEN: Mapping[ServiceName, str] = {
    "gateway": "its requests end; clients ask another, or once it is back",
    "router": "the next in line takes office, or itself when it is started again",
    "registry": "it goes on from what it had saved",
    "planner": "running scales go on once it is back",
    "monitor": "nothing is scaled until it is back",
    "host": "copies that only it had are made elsewhere",
    "worker": "its requests go on at other workers, its transfers from other senders",
}

log = structlog.get_logger()


class Members:
    """Keeps the leases: whatever is heard of a process comes here, and every change of a lease is published from here.

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
        self._seldom = RateLimitedLog(world.clock.now)
        self._before: dict[str, Member] = {}
        self._metrics = MemberMetrics(world.telemetry, leases, pool)
        self.endpoints = [
            Endpoint(JOIN, self._join),
            Endpoint(INCIDENTS, self._last_incidents),
            Endpoint(SNAPSHOT, self._snapshot),
        ]

    def restore(self, members: Iterable[Member]) -> None:
        """Take over the members that an earlier registry knew."""
        known = list(members)
        # Its own lease died with the registry before this one.
        self._before = {one.id: one for one in known if one.service == "registry"}
        others = (one for one in known if one.service != "registry")
        self._leases.restore(others, self._clock.now(), self._saved.epochs)
        self._reserve_epochs()

    async def run(self, heartbeats: Subscription[Report], leaves: Subscription[Leave]) -> None:
        """Hear all processes and judge the silent ones, for ever. Both subscriptions are made before any process can
        join."""
        aways, ends = await self._bus.subscribe(AWAY), await self._bus.subscribe(PROCESS)
        async with asyncio.TaskGroup() as group:
            group.create_task(heartbeats.each(self._hear), name="heartbeats")
            group.create_task(self._follow_leaves(leaves), name="leaves")
            group.create_task(self._follow_aways(aways), name="aways")
            group.create_task(self._follow_ends(ends), name="ends")
            group.create_task(self._judge(), name="leases")

    async def _join(self, join: Join, context: Context) -> Joined:
        self._check_join(join, self._leases.members())
        before = self._leases.by_id().get(join.id) or self._before.pop(join.id, None)
        member, moves = self._leases.join(join, self._clock.now())
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

    async def _follow_leaves(self, leaves: Subscription[Leave]) -> None:
        async for received in leaves:
            last = received.message
            for move in self._leases.leave(last.service, last.id, last.epoch):
                self._announce(move)

    async def _follow_aways(self, aways: Subscription[WasAway]) -> None:
        async for received in aways:
            self._incidents.away(received.message, self._leases.members())

    async def _follow_ends(self, ends: Subscription[ProcessEnded]) -> None:
        async for received in ends:
            ended = received.message
            self._incidents.ended(ended.id, ended.reason, ended.at)

    async def _judge(self) -> None:
        while True:
            for move in self._leases.tick(self._clock.now()):
                self._announce(move)
            await asyncio.sleep(TICK_SECONDS)

    def _announce(self, effect: LeaseMoved | SpokeStale | SpokeFalse) -> None:
        if isinstance(effect, SpokeFalse):
            self._seldom.warning("false_heartbeat", effect.id, epoch=effect.epoch, reason=effect.reason)
            return
        if isinstance(effect, SpokeStale):
            # A process that slept has said it many times before it hears this.
            self._seldom.warning("stale_epoch", effect.id, member=effect.id, epoch=effect.epoch)
            self._bus.publish(STALE, Stale(id=effect.id, epoch=effect.epoch), id=effect.id)
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
        self._metrics.lease_moved(effect.state)
        tell = log.warning if effect.state == "dead" and effect.reason != LEFT else log.info
        then = {"then": THEN[effect.service]} if effect.state == "dead" else {}
        tell("lease_changed", member=effect.id, epoch=effect.epoch, state=effect.state, reason=effect.reason, **then)
        change = LeaseChanged(
            service=effect.service,
            id=effect.id,
            epoch=effect.epoch,
            state=effect.state,
            reason=effect.reason,
            at=self._clock.wall(),
        )
        self._bus.publish(LEASE, change, id=effect.id)
        if effect.state == "dead":
            self._bus.publish(DEATH, change, service=effect.service, id=effect.id)


class MemberMetrics:
    """Counts members for Prometheus. Zeros are shown too, as an operator wants to be woken for them."""

    def __init__(self, telemetry: Telemetry, leases: Leases, pool: Pool) -> None:
        self._leases = leases
        self._holds = pool.holds
        self._moves = telemetry.counter(
            "livescale_registry_lease_changes_total",
            "Changes of leases by new state",
            ["state"],
            [("alive",), ("suspect",), ("dead",)],
        )
        telemetry.watch_gauge(
            "livescale_registry_members", "Processes that live, by service", ["service"], self._count_members
        )
        telemetry.watch_gauge(
            "livescale_registry_workers", "Workers that live, by state", ["state"], self._count_workers
        )

    def lease_moved(self, state: LeaseState) -> None:
        self._moves.labels(state).inc()

    def _count_members(self) -> dict[tuple[str, ...], float]:
        living = Counter(one.service for one in self._leases.members() if one.lease != "dead")
        return {(service,): float(living[service]) for service in get_args(ServiceName)}

    def _count_workers(self) -> dict[tuple[str, ...], float]:
        states = Counter(report.state for report in self._holds.workers())
        return {(state,): float(states[state]) for state in get_args(WorkerState)}
