"""Which processes are alive: leases, renewed by heartbeats and fenced by epochs. Pure.

Times are seconds of the registry's own running time, so that no process counts as silent while the registry itself was
stopped.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Join, LeaseState, Member, ServiceName
from livescale.shared.policy.invariants import StateMachine, check

MOVES: StateMachine[LeaseState] = StateMachine(
    "a lease",
    {
        "alive": frozenset({"suspect", "dead"}),
        "suspect": frozenset({"alive", "dead"}),
        "dead": frozenset(),
    },
)

LEFT = "it ended, and said so"
HEARD_AGAIN = "heard again"

# The highest epoch that is believed of a heartbeat from an earlier registry's time: more than can have been given out,
# and far below the largest number of a message.
MOST_EPOCHS = 2**48
ROUNDING_SECONDS = 1e-6  # by which a member may be looked at too early


@dataclass(frozen=True)
class LeaseTimes:
    """Seconds of silence until a member is suspected, declared dead, and forgotten."""

    suspect_seconds: float = 1.5
    dead_seconds: float = 2.5
    forget_seconds: float = 300.0


@dataclass(frozen=True)
class LeaseMoved:
    """An event: a member's lease changed to `state`."""

    service: ServiceName
    id: str
    epoch: int
    state: LeaseState
    reason: str


@dataclass(frozen=True)
class SpokeStale:
    """A process spoke with an epoch that it does not have, or no longer; it has to join again."""

    id: str
    epoch: int


@dataclass(frozen=True)
class SpokeFalse:
    """A message claims a service or an epoch that the registry cannot have given; it is ignored and not answered."""

    id: str
    epoch: int
    reason: str


@dataclass
class _Lease:
    member: Member
    seen: float
    sure: bool  # its epoch was given here, or heard; else an earlier registry may have given a later one
    replaced: frozenset[int] = frozenset()  # pids that had this id and were not dead yet
    used: bool = False  # its process was heard under this epoch, so it knows it

    def move(self, state: LeaseState, reason: str) -> LeaseMoved:
        member = self.member = replace(self.member, lease=MOVES.advance(self.member.lease, state))
        return LeaseMoved(member.service, member.id, member.epoch, state, reason)

    def hear(self, now: float) -> list[LeaseMoved]:
        """Renew the lease of a process that is not dead."""
        self.seen = now
        return [self.move("alive", HEARD_AGAIN)] if self.member.lease == "suspect" else []


def _member(join: Join, epoch: int, lease: LeaseState) -> Member:
    return Member(
        service=join.service,
        id=join.id,
        pid=join.pid,
        host=join.host,
        epoch=epoch,
        lease=lease,
        address=join.address,
        place=join.place,
        kernels=join.kernels,
        system=join.system,
    )


class Leases:
    """The table of leases. A member is alive as long as its heartbeats come, whatever it is busy with.

    `own` is the id of the registry that keeps this table. While it does not hear its own heartbeats, the silence of
    others says nothing about them.
    """

    def __init__(self, times: LeaseTimes, own: str = "") -> None:
        self._times = times
        self._own = own
        self._leases: dict[str, _Lease] = {}
        # One counter for all: an id that comes back after it was forgotten still gets a higher epoch.
        self._last_epoch = 0
        self._most_epochs = MOST_EPOCHS
        self._frozen = False

    def members(self) -> list[Member]:
        """All known members in the order of their ids, the dead included."""
        return [self._leases[id].member for id in sorted(self._leases)]

    def member(self, id: str) -> Member | None:
        """The member of this id, dead or not; None where none is known."""
        lease = self._leases.get(id)
        return None if lease is None else lease.member

    def by_id(self) -> dict[str, Member]:
        return {id: lease.member for id, lease in self._leases.items()}

    def is_alive(self, id: str) -> bool:
        """Whether the member is known and not dead; a suspect counts as alive."""
        return id in self._leases and self._leases[id].member.lease != "dead"

    @property
    def last_epoch(self) -> int:
        """The highest epoch that was given out or heard of."""
        return self._last_epoch

    def restore(self, members: Iterable[Member], now: float, last_epoch: int = 0) -> None:
        """Take over what an earlier registry knew. Each member is suspect until heard, for one lease time at most.

        `last_epoch`: the earlier registry gave out no epoch above it; 0 where that is not known.
        """
        self._last_epoch = last_epoch
        self._most_epochs = last_epoch or MOST_EPOCHS
        for member in members:
            self._last_epoch = max(self._last_epoch, member.epoch)
            self._leases[member.id] = _Lease(replace(member, lease="suspect"), now, sure=False, used=True)

    def join(self, join: Join, now: float) -> tuple[Member, list[LeaseMoved]]:
        """Admit a process under a new epoch; one of the same id before it is dead from here on.

        Who asks once more, and was not heard since, missed the answer: it has the same epoch.

        Raises Refusal 409 where the id is in use by another service, alive on another machine, or alive in a process
        that has replaced this one and was heard: two of one id would else replace each other for ever.
        """
        effects, replaced = [], frozenset[int]()
        known = self._leases.get(join.id)
        if known is not None and known.member.lease != "dead":
            self._refuse_taken(join, known)
            if not known.used and _member(join, known.member.epoch, known.member.lease) == known.member:
                return known.member, known.hear(now)
            effects.append(known.move("dead", f"pid {join.pid} joined under this id"))
            replaced = (known.replaced | {known.member.pid}) - {join.pid}
        self._last_epoch += 1
        member = _member(join, self._last_epoch, "alive")
        self._leases[join.id] = _Lease(member, now, sure=True, replaced=replaced)
        return member, [*effects, LeaseMoved(join.service, join.id, member.epoch, "alive", "joined")]

    @staticmethod
    def _refuse_taken(join: Join, lease: _Lease) -> None:
        holder = lease.member
        if holder.service != join.service:
            raise Refusal(409, f"id {join.id!r} belongs to a {holder.service}: choose another with --id")
        # A holder that was never heard may be gone: its request to join was late, and came after its successor's.
        if join.pid in lease.replaced and holder.lease == "alive" and lease.used:
            raise Refusal(409, f"id {join.id!r} is now that of pid {holder.pid}: choose another with --id", 1000)
        if holder.host != join.host and holder.lease == "alive":
            raise Refusal(
                409, f"id {join.id!r} is alive on {holder.host} (pid {holder.pid}): choose another with --id", 1000
            )

    def beat(self, service: ServiceName, id: str, epoch: int, now: float) -> list[LeaseMoved | SpokeStale | SpokeFalse]:
        """Take a heartbeat: it renews the lease, or it is stale or false."""
        lease = self._leases.get(id)
        if lease is not None and lease.member.service != service:
            return [SpokeFalse(id, epoch, f"a {service} sent it, but the id belongs to a {lease.member.service}")]
        if lease is not None and lease.sure and epoch > lease.member.epoch:
            return [SpokeFalse(id, epoch, f"epoch {epoch} was never assigned; the last one is {lease.member.epoch}")]
        if lease is None or lease.member.epoch != epoch or lease.member.lease == "dead":
            if epoch <= self._most_epochs:
                self._last_epoch = max(self._last_epoch, epoch)
            return [SpokeStale(id, epoch)]
        lease.sure = lease.used = True
        return [*lease.hear(now)]

    def leave(self, service: ServiceName, id: str, epoch: int) -> list[LeaseMoved]:
        """End the lease of a process that says that it ends. A message from another epoch changes nothing."""
        lease = self._leases.get(id)
        if lease is None or lease.member.lease == "dead":
            return []
        if (lease.member.service, lease.member.epoch) != (service, epoch):
            return []
        return [lease.move("dead", LEFT)]

    def freeze(self) -> None:
        """Judge no process from now on: while the bus is down all are silent."""
        self._frozen = True

    def thaw(self, now: float) -> None:
        """Judge again: every member has one whole lease time to be heard."""
        self._frozen = False
        self._give_time(self._leases, now)

    def _give_time(self, ids: Iterable[str], now: float) -> None:
        for id in ids:
            if self.is_alive(id):
                self._leases[id].seen = now

    def tick(self, now: float) -> list[LeaseMoved]:
        """Move the leases of silent members. It is meant to be called several times a second."""
        if self._frozen:
            return []
        deaf = {self._own} if self._is_deaf(now) else set[str]()
        if deaf:  # until it hears itself: the others have one whole lease time from then on
            self._give_time(self._leases.keys() - deaf, now)
        times = self._times
        # There may be thousands of members, nearly all of whom were heard a moment ago: they are looked at once.
        latest = now - min(times.suspect_seconds, times.dead_seconds, times.forget_seconds) + ROUNDING_SECONDS
        silent = sorted(id for id, lease in self._leases.items() if lease.seen <= latest)
        self._forget(silent, now)
        moves = (self._judge(self._leases[id], now) for id in silent if id in self._leases and id not in deaf)
        return [move for move in moves if move is not None]

    def _is_deaf(self, now: float) -> bool:
        if not self.is_alive(self._own):
            return False
        return now - self._leases[self._own].seen >= self._times.suspect_seconds

    def _judge(self, lease: _Lease, now: float) -> LeaseMoved | None:
        silent = now - lease.seen
        if lease.member.lease == "dead":
            return None
        if silent >= self._times.dead_seconds:
            return lease.move("dead", f"silent for {silent:.1f} s")
        if silent >= self._times.suspect_seconds and lease.member.lease == "alive":
            return lease.move("suspect", f"silent for {silent:.1f} s")
        return None

    def _forget(self, silent: Iterable[str], now: float) -> None:
        for id in silent:
            lease = self._leases[id]
            if lease.member.lease == "dead" and now - lease.seen >= self._times.forget_seconds:
                del self._leases[id]

    def check_invariants(self) -> None:
        """No epoch is given twice, and none is above the last. Raises InvariantBroken."""
        check(self._broken())

    def _broken(self) -> Iterator[str]:
        holders: dict[int, str] = {}
        for member in self.members():
            if member.epoch > self._last_epoch:
                yield f"leases: epoch {member.epoch} of {member.id} is above the last, {self._last_epoch}"
            if member.epoch in holders:
                yield f"leases: {member.id} and {holders[member.epoch]} share epoch {member.epoch}"
            holders[member.epoch] = member.id
