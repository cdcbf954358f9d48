"""Who may say that it is where: a worker is at a GPU of the topology, a host at a host, and nobody else is there."""

from collections.abc import Iterable

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import Join, Member
from livescale.shared.topology.topology import Topology


def check_place(join: Join, members: Iterable[Member], topology: Topology | None) -> None:
    """Raises Refusal for a place that the topology lacks, or that another member of the kind has."""
    if join.service not in ("worker", "host"):
        return
    if topology is not None:
        _refuse_unknown(join, topology)
    for member in members:
        is_there = (member.service, member.place) == (join.service, join.place)
        if join.place is not None and is_there and member.id != join.id and member.lease == "alive":
            raise Refusal(409, f"place {join.place!r} is {member.id}'s: choose another with --place", 1000)


def _refuse_unknown(join: Join, topology: Topology) -> None:
    kind = "GPU" if join.service == "worker" else "host"
    known = [gpu.id for gpu in topology.gpus] if join.service == "worker" else [host.id for host in topology.hosts]
    if join.place not in known:
        said = f"{join.place!r} is no {kind} of topology {topology.name}" if join.place else "it says no place"
        raise Refusal(422, f"{join.id}: {said}; give --place, a {kind} such as {', '.join(known[:3]) or 'none'}")
