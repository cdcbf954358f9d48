"""What serving moves over which links: as both ends of it measured, else as roles have it. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import cast

from livescale.services.planner.plans.network import ServingFlow
from livescale.services.planner.plans.plan import Direction, LinkKind
from livescale.shared.messages.membership import Role, WorkerReport
from livescale.shared.messages.registry import Snapshot
from livescale.shared.topology.paths import Resource, TopologyPlace, path_between

# A prefill instance sends the KV that it makes to a decode instance (BlitzScale 5.1).
DIRECTIONS: Mapping[Role | None, Direction] = {"prefill": "out", "decode": "in"}

Ends = tuple[str, str]  # who sends, who receives


def find_traffic(snapshot: Snapshot, places: Mapping[str, TopologyPlace], silent: Collection[str]) -> list[ServingFlow]:
    """Over every link of the way. Of who is `silent` nothing is known but the role, nor of who does not measure."""
    reports = [report for report in snapshot.workers if report.id in places]
    known = [report for report in reports if is_known(report, silent)]
    by_link: dict[Resource, float] = {}
    for (sender, receiver), rate in measure(known, snapshot).items():
        if sender in places and receiver in places:
            for link in path_between(places[sender], places[receiver]).resources:
                by_link[link] = by_link.get(link, 0.0) + rate
    measured = [as_flow(link, rate) for link, rate in by_link.items() if rate]
    return [*measured, *assume((report for report in reports if not is_known(report, silent)), places)]


def is_known(report: WorkerReport, silent: Collection[str]) -> bool:
    return report.traffic is not None and report.id not in silent


def measure(reports: Iterable[WorkerReport], snapshot: Snapshot) -> dict[Ends, float]:
    """Bytes a second; where the two ends differ, the more."""
    ids = {member.address: member.id for member in snapshot.members}
    rates: dict[Ends, float] = {}
    for report in reports:
        for each in report.traffic or ():
            peer = ids.get(each.peer)
            if peer is not None:  # who has left receives nothing any more
                sent, received = (report.id, peer), (peer, report.id)
                rates[sent] = max(rates.get(sent, 0.0), each.sent)
                rates[received] = max(rates.get(received, 0.0), each.received)
    return rates


def as_flow(link: Resource, rate: float) -> ServingFlow:
    over, _, direction = link.kind.partition("_")
    return ServingFlow(link.owner, cast("Direction", direction), rate, cast("LinkKind", over))


def assume(reports: Iterable[WorkerReport], places: Mapping[str, TopologyPlace]) -> Iterator[ServingFlow]:
    """By the role: all of the NIC in the direction in which it moves KV."""
    for report in reports:
        if report.role in DIRECTIONS:
            at, direction = places[report.id], DIRECTIONS[report.role]
            yield ServingFlow(at.nic, direction, at.nic_out if direction == "out" else at.nic_in)


def explain_unknown(snapshot: Snapshot, silent: Collection[str]) -> list[str]:
    """Of whom only the role is known, where that matters: of instances."""
    unknown = [one for one in snapshot.workers if one.instance is not None and not is_known(one, silent)]
    return [
        f"the traffic of {one.id} is not known ({'it is silent' if one.id in silent else 'it measures none'}): "
        f"taken by its role, {one.role}, as {_say(one.role)}"
        for one in unknown
    ]


def _say(role: Role | None) -> str:
    return f"all of its NIC {DIRECTIONS[role]}" if role in DIRECTIONS else "none"
