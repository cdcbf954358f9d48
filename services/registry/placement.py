"""Which host keeps which model in its memory (BlitzScale 5.3): one copy of each, spread evenly by bytes. Pure.

`host_caches` has other policies.
Where memory is short a copy may go while an instance serves the model; it is made again before the last one drains.
A settled state orders nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

MIB = 1024**2


@dataclass(frozen=True)
class HostCopy:
    """Memory that a host has set aside for a model. `version` is empty until it is known."""

    model: str
    version: str
    size_bytes: int
    whole: bool
    sending: bool = False


@dataclass(frozen=True)
class HostMemory:
    """A host cache: how many bytes it may take, and which copies take some."""

    id: str
    limit_bytes: int
    copies: tuple[HostCopy, ...] = ()

    @property
    def used_bytes(self) -> int:
        return sum(copy.size_bytes for copy in self.copies)

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes


@dataclass(frozen=True)
class CopyDemand:
    """A version that a host is to keep.

    `needed` says that no instance can be relied on instead. `coming` is the host that was commanded to get it. One of
    unknown version has turned out to be `other_than` these versions.
    """

    model: str
    version: str
    size_bytes: int
    needed: bool
    coming: str | None = None
    other_than: frozenset[str] = frozenset()


@dataclass(frozen=True)
class MakeCopy:
    """An order: this host is to get this version, from other holders or from disk."""

    host: str
    model: str
    version: str
    reason: str


@dataclass(frozen=True)
class FreeCopy:
    """An order: this host is to give the memory of this version back."""

    host: str
    model: str
    version: str
    reason: str


@dataclass(frozen=True)
class NoRoom:
    """No host can keep this version, whatever is released."""

    model: str
    version: str
    reason: str


CopyOrder = MakeCopy | FreeCopy | NoRoom


def as_mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f} MiB"


def plan_copies(hosts: Sequence[HostMemory], demands: Sequence[CopyDemand]) -> list[CopyOrder]:
    """The orders that can be carried out now. What depends on them is ordered by a later call."""
    pool = DemandedCopies(hosts, demands)
    orders: list[CopyOrder] = [*free_stale(pool), *_free_surplus(pool), *make_missing(pool)]
    under_way = any(not copy.whole for host in hosts for copy in host.copies) or any(d.coming for d in demands)
    if not orders and not under_way:
        orders += _move(pool)
    return freed_first(orders)


def freed_first(orders: Iterable[CopyOrder]) -> list[CopyOrder]:
    """The orders with those that free memory before the others, and each of those once."""
    listed = list(orders)
    freed = {(one.host, one.model, one.version): one for one in listed if isinstance(one, FreeCopy)}
    return [*freed.values(), *(one for one in listed if not isinstance(one, FreeCopy))]


def why_no_room(hosts: Sequence[HostMemory], demands: Sequence[CopyDemand], model: str, size_bytes: int) -> str | None:
    """Why no host can keep so many bytes, even after it releases all that may be released; None where one can."""
    pool = DemandedCopies(hosts, demands)
    rooms = {host.id: (host.limit_bytes - pool.bound_bytes(host), host.limit_bytes) for host in hosts}
    if any(room >= size_bytes for room, _ in rooms.values()):
        return None
    told = ", ".join(f"{id} has {as_mib(max(0, room))} of {as_mib(limit)}" for id, (room, limit) in rooms.items())
    return (
        f"model {model!r} needs {as_mib(size_bytes)} of a host cache, and without evicting the only copy of another "
        "model "
        f"{told or 'no host is alive'}; start a host with a larger --cache-bytes, add one, or remove a model"
    )


class DemandedCopies:
    """Hosts in the order of their ids, which demand each copy satisfies, and what is ordered.

    `free` has the bytes of each host that nothing takes, is announced for, or is ordered for.
    """

    def __init__(self, hosts: Sequence[HostMemory], demands: Sequence[CopyDemand]) -> None:
        self.hosts = sorted(hosts, key=lambda host: host.id)
        self.demands = demands
        self._by_model: dict[str, list[CopyDemand]] = {}
        for demand in demands:
            self._by_model.setdefault(demand.model, []).append(demand)
        self.free = {host.id: host.free_bytes - self.announced_bytes(host) for host in self.hosts}
        self._released: set[tuple[str, HostCopy]] = set()

    def make(self, host: str, demand: CopyDemand, reason: str) -> MakeCopy:
        """Order this host to get what is demanded, into memory that is free."""
        self.free[host] -= demand.size_bytes
        return MakeCopy(host, demand.model, demand.version, reason)

    def release(self, host: HostMemory, copy: HostCopy, reason: str) -> FreeCopy:
        """Order this host to give this copy up."""
        self._released.add((host.id, copy))
        return FreeCopy(host.id, copy.model, copy.version, reason)

    def is_elsewhere(self, host: HostMemory, copy: HostCopy) -> bool:
        """Whether another host has all of this version, and keeps it."""
        return any(
            other.id != host.id
            and one.whole
            and (one.model, one.version) == (copy.model, copy.version)
            and (other.id, one) not in self._released
            for other in self.hosts
            for one in other.copies
        )

    def owner(self, host: HostMemory, copy: HostCopy) -> CopyDemand | None:
        """The demand that this copy satisfies, or None.

        A copy that is still being read may turn out to be any version of its model, and a demand of unknown version
        takes any copy that it is not known to be other than.
        """
        ours = self._by_model.get(copy.model, [])
        exact = [one for one in ours if copy.version and one.version == copy.version]
        possible = [one for one in ours if "" in (copy.version, one.version) and copy.version not in one.other_than]
        told = [one for one in possible if one.coming == host.id]
        return next(iter([*exact, *told, *possible]), None)

    def owned(self, host: HostMemory) -> list[CopyDemand]:
        owners = (self.owner(host, copy) for copy in host.copies)
        return [one for one in owners if one is not None]

    def announced_bytes(self, host: HostMemory, *, needed: bool = False) -> int:
        """Bytes that the host was commanded to take and does not report yet."""
        here = self.owned(host)
        told = [one for one in self.demands if one.coming == host.id and one not in here]
        return sum(one.size_bytes for one in told if one.needed or not needed)

    def bound_bytes(self, host: HostMemory) -> int:
        """Bytes of this host that cannot be released."""
        owners = [(copy, self.owner(host, copy)) for copy in host.copies]
        needed = [copy for copy, owner in owners if owner is not None and owner.needed]
        bound = sum(copy.size_bytes for copy in needed if not self.is_elsewhere(host, copy))
        return bound + self.announced_bytes(host, needed=True)

    def holders(self) -> dict[CopyDemand, list[HostMemory]]:
        """The hosts that have, or are getting, each demanded version."""
        found: dict[CopyDemand, list[HostMemory]] = {}
        for host in self.hosts:
            for one in self.owned(host):
                found.setdefault(one, []).append(host)
        return found


def free_stale(pool: DemandedCopies) -> Iterator[FreeCopy]:
    """Release old versions, and models that were removed."""
    for host in pool.hosts:
        for copy in host.copies:
            if pool.owner(host, copy) is None and not copy.sending:
                yield pool.release(host, copy, "nothing is to be served from it any more")


def _free_surplus(pool: DemandedCopies) -> Iterator[FreeCopy]:
    """Release all copies of a version but the one in the emptiest cache."""
    wanted = {(one.model, one.version) for one in pool.demands if one.version}
    holders: dict[tuple[str, str], list[tuple[HostMemory, HostCopy]]] = {}
    for host in pool.hosts:
        for copy in host.copies:
            if copy.whole and (copy.model, copy.version) in wanted:
                holders.setdefault((copy.model, copy.version), []).append((host, copy))
    for having in holders.values():
        for host, copy in sorted(having, key=lambda one: (one[0].used_bytes, one[0].id))[1:]:
            if not copy.sending:
                yield pool.release(host, copy, "another host has a copy")


def make_missing(pool: DemandedCopies, *, only_needed: bool = False) -> Iterator[CopyOrder]:
    """Make needed copies first, and large ones before small ones. Others take only memory that is left over, if they
    are made at all."""
    holders = pool.holders()
    there = {one for one in holders if one.version}
    missing = [one for one in pool.demands if one.coming is None and one not in there]
    missing = [one for one in missing if one.needed or not only_needed]
    limits, free, waiting = {host.id: host.limit_bytes for host in pool.hosts}, pool.free, False
    for one in sorted(missing, key=lambda one: (not one.needed, -one.size_bytes, one.model, one.version)):
        roomy = [id for id in free if free[id] >= one.size_bytes]
        if one in holders:
            began = holders[one][0].id
            yield MakeCopy(began, one.model, one.version, f"{began} has begun with it, or has it")
        elif roomy and (one.needed or not waiting):
            best = min(roomy, key=lambda id: (limits[id] - free[id], id))
            yield pool.make(best, one, f"{best} is the least filled host that has room")
        elif one.needed:
            waiting = True
            yield from _make_room(one, pool)


def _make_room(wanted: CopyDemand, pool: DemandedCopies) -> Iterator[FreeCopy | NoRoom]:
    """Release what instances serve or other hosts have, on the host where the fewest bytes have to go."""
    spare = {(one.model, one.version) for one in pool.demands if not one.needed}
    least, chosen = inf, list[tuple[HostMemory, HostCopy]]()
    for host in pool.hosts:
        idle = [copy for copy in host.copies if copy.whole and not copy.sending]
        releasable = [copy for copy in idle if (copy.model, copy.version) in spare or pool.is_elsewhere(host, copy)]
        copies = _cover(releasable, wanted.size_bytes - pool.free[host.id])
        freed = sum(copy.size_bytes for copy in copies)
        if copies and freed < least:
            least, chosen = freed, [(host, copy) for copy in copies]
    for host, copy in chosen:
        who = "instances serve" if (copy.model, copy.version) in spare else "another host has"
        yield pool.release(host, copy, f"{wanted.model} has to be kept in its place, and {who} {copy.model}")
    why = why_no_room(pool.hosts, pool.demands, wanted.model, wanted.size_bytes)
    if why is not None:
        yield NoRoom(wanted.model, wanted.version, why)


def _cover(copies: Iterable[HostCopy], size_bytes: int) -> list[HostCopy]:
    """Few copies that free at least so many bytes; an empty list where all together are too small.

    The smallest copy that is enough alone is chosen, else the largest ones.
    """
    ordered = sorted(copies, key=lambda copy: (copy.size_bytes, copy.model))
    alone = [copy for copy in ordered if copy.size_bytes >= size_bytes]
    if alone:
        return alone[:1]
    chosen: list[HostCopy] = []
    while ordered and sum(copy.size_bytes for copy in chosen) < size_bytes:
        chosen.append(ordered.pop())
    return chosen if sum(copy.size_bytes for copy in chosen) >= size_bytes else []


def _move(pool: DemandedCopies) -> Iterator[MakeCopy]:
    """Copy a model from the fullest cache to the emptiest where that evens them out. The old copy is surplus then."""
    if len(pool.hosts) < 2:
        return
    emptiest = min(pool.hosts, key=lambda host: (host.used_bytes, host.id))
    fullest = max(pool.hosts, key=lambda host: (host.used_bytes, host.id))
    gap = fullest.used_bytes - emptiest.used_bytes
    largest = min(gap - 1, emptiest.free_bytes)
    there = {(copy.model, copy.version) for copy in emptiest.copies}
    movable = (copy for copy in fullest.copies if not copy.sending and (copy.model, copy.version) not in there)
    fitting = [copy for copy in movable if copy.size_bytes <= largest]
    if fitting:
        best = min(fitting, key=lambda copy: (abs(2 * copy.size_bytes - gap), copy.model))
        reason = f"{fullest.id} keeps {as_mib(gap)} more than {emptiest.id}"
        yield MakeCopy(emptiest.id, best.model, best.version, reason)
