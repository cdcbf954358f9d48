"""What the registry tells of leases: events for all processes, and lines for who reads the log."""

from collections.abc import Mapping

import structlog

from livescale.services.registry.leases import LEFT, LeaseMoved, SpokeFalse, SpokeStale
from livescale.shared.messages.membership import LeaseChanged, ServiceName, Stale
from livescale.shared.process.run import World
from livescale.shared.runtime.rate_limited_log import RateLimitedLog
from livescale.shared.subjects import DEATH, LEASE, STALE

# What happens after a death, for readers of the log.
THEN: Mapping[ServiceName, str] = {
    "gateway": "its requests end; clients ask another gateway, or this one once it is back",
    "router": "the next router becomes active, or this one once it is back",
    "registry": "once it is back, it goes on from its saved state",
    "planner": "running scales go on once it is back",
    "monitor": "nothing is scaled until it is back",
    "host": "copies that only it had are made on other hosts",
    "worker": "its requests go on at other workers, its transfers with other senders",
}

log = structlog.get_logger()


class LeaseNews:
    """Tells every change of a lease, and of processes that spoke with an epoch that is not theirs."""

    def __init__(self, world: World) -> None:
        self._bus, self._clock = world.bus, world.clock
        self._seldom = RateLimitedLog(world.clock.now)
        # Zeros are shown too, as an operator wants to be woken for them.
        self._moves = world.telemetry.counter(
            "livescale_registry_lease_changes_total",
            "Changes of leases by new state",
            ["state"],
            [("alive",), ("suspect",), ("dead",)],
        )

    def tell(self, effect: LeaseMoved | SpokeStale | SpokeFalse) -> None:
        match effect:
            case LeaseMoved():
                self._tell_move(effect)
            case SpokeStale():
                # A process that slept has said it many times before it hears this.
                self._seldom.warning("stale_epoch", effect.id, member=effect.id, epoch=effect.epoch)
                self._bus.publish(STALE, Stale(id=effect.id, epoch=effect.epoch), id=effect.id)
            case SpokeFalse():
                self._seldom.warning("false_heartbeat", effect.id, epoch=effect.epoch, reason=effect.reason)

    def _tell_move(self, move: LeaseMoved) -> None:
        self._moves.labels(move.state).inc()
        tell = log.warning if move.state == "dead" and move.reason != LEFT else log.info
        then = {"then": THEN[move.service]} if move.state == "dead" else {}
        tell("lease_changed", member=move.id, epoch=move.epoch, state=move.state, reason=move.reason, **then)
        change = LeaseChanged(
            service=move.service,
            id=move.id,
            epoch=move.epoch,
            state=move.state,
            reason=move.reason,
            at=self._clock.wall(),
        )
        self._bus.publish(LEASE, change, id=move.id)
        if move.state == "dead":
            self._bus.publish(DEATH, change, service=move.service, id=move.id)
