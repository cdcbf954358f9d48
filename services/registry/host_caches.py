"""How hosts keep copies of models, by policy: one each (BlitzScale 5.3), what was used of late, or all. Pure.

The last two are what other systems do, for comparison: ServerlessLLM's cache, and the one that BlitzScale's authors
call AllCache. By each of them one copy stays wherever no instance serves the model.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from livescale.services.registry.holdings import Holdings
from livescale.services.registry.placement import (
    CopyDemand,
    CopyOrder,
    DemandedCopies,
    FreeCopy,
    HostCopy,
    HostMemory,
    MakeCopy,
    free_stale,
    freed_first,
    make_missing,
    plan_copies,
)
from livescale.shared.messages.membership import Member
from livescale.shared.runtime.settings import HostCacheName

CopyKey = tuple[str, str, str]  # host, model, version


@dataclass
class HostCaches:
    """The policy by which hosts keep copies. By ttl a copy goes after `ttl` seconds without use.

    A copy is in use while it is read or sent, and while a worker of its machine holds the same version.
    """

    policy: HostCacheName = "pool"
    ttl: float = 300.0
    _used: dict[CopyKey, float] = field(default_factory=dict)

    def look(self, holds: Holdings, members: Iterable[Member], now: float) -> None:
        """Note which copies are in use. A copy that is seen for the first time was used just now."""
        homes = {member.id: home_of(member) for member in members}
        served = {(homes[id], version) for id, version in holds.in_workers() if id in homes}
        used: dict[CopyKey, float] = {}
        for host in holds.memories():
            for copy in host.copies:
                key = (host.id, copy.model, copy.version)
                in_use = not copy.whole or copy.sending or (homes.get(host.id, ""), copy.version) in served
                used[key] = now if in_use else self._used.get(key, now)
        self._used = used

    def plan(self, hosts: Sequence[HostMemory], demands: Sequence[CopyDemand], now: float) -> list[CopyOrder]:
        """The orders that can be carried out now. What depends on them is ordered by a later call."""
        match self.policy:
            case "pool":
                return plan_copies(hosts, demands)
            case "ttl":
                idle = {key: now - at for key, at in self._used.items()}
                return plan_recent(hosts, demands, idle, self.ttl)
            case "all":
                return plan_everywhere(hosts, demands)
            case _:
                assert_never(self.policy)


def home_of(member: Member) -> str:
    """The machine of a process: that of its place in the topology, which may be emulated, else its own."""
    return member.place.partition("/")[0] if member.place else member.host


def plan_recent(
    hosts: Sequence[HostMemory], demands: Sequence[CopyDemand], idle: Mapping[CopyKey, float], ttl: float
) -> list[CopyOrder]:
    """Orders by which copies stay for `ttl` seconds after their last use, and are made only where no instance serves.

    Hosts get the others when they are told to send them. `idle` is how long each copy has not been used.
    """
    copies = DemandedCopies(hosts, demands)
    missing = make_missing(copies, only_needed=True)
    return freed_first([*free_stale(copies), *_free_idle(copies, idle, ttl), *missing])


def _free_idle(copies: DemandedCopies, idle: Mapping[CopyKey, float], ttl: float) -> Iterator[FreeCopy]:
    for demand, holders in copies.holders().items():
        whole = [(host, copy) for host in holders for copy in host.copies if _is_whole(copy, demand)]
        ages = {host.id: idle.get((host.id, copy.model, copy.version), 0.0) for host, copy in whole}
        # The one that was used last stays where nothing else has the model.
        kept = min(ages, key=lambda id: (ages[id], id), default=None) if demand.needed else None
        for host, copy in whole:
            if ages[host.id] >= ttl and host.id != kept and not copy.sending:
                yield copies.release(host, copy, f"it was not used for {ttl:g} s")


def _is_whole(copy: HostCopy, demand: CopyDemand) -> bool:
    return copy.whole and (copy.model, copy.version) == (demand.model, demand.version)


def plan_everywhere(hosts: Sequence[HostMemory], demands: Sequence[CopyDemand]) -> list[CopyOrder]:
    """Orders by which every host gets a copy of every version, one host after the other, as far as memory allows."""
    copies = DemandedCopies(hosts, demands)
    orders: list[CopyOrder] = [*free_stale(copies), *make_missing(copies)]
    ordered = {one.model for one in orders if isinstance(one, MakeCopy)}
    for demand, holders in copies.holders().items():
        if demand.version and demand.coming is None and demand.model not in ordered:
            lacking = copies.free.keys() - {host.id for host in holders}
            roomy = [id for id in lacking if copies.free[id] >= demand.size_bytes]
            if roomy:
                orders.append(copies.make(min(roomy), demand, "every host has a copy"))
    return freed_first(orders)
