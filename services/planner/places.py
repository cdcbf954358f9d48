"""Where workers and hosts are in the cluster, for plans."""

from collections.abc import Iterable

from livescale.shared.messages.membership import Member
from livescale.shared.topology.paths import TopologyPlace
from livescale.shared.topology.topology import ASSUMED_DISK, ASSUMED_MEMORY, ASSUMED_NIC, Topology


def find_places(
    members: Iterable[Member], topology: Topology | None, link_rate: float = 0.0
) -> dict[str, TopologyPlace]:
    """By the member's id; who is nowhere in the topology is left out.

    Without a topology each machine is a host, its workers are one domain, and rates are assumed. With a `link_rate`
    each process is a host of its own, as links have it: all that leaves it goes over one link of that rate, also to
    others of its machine. Nothing between them is any faster, and there is nothing that they share.
    """
    placed = [member for member in members if member.service in ("worker", "host")]
    if topology is not None:
        places = topology.places
        return {member.id: places[place] for member in placed if (place := member.place or "") in places}
    if link_rate:
        return {member.id: assumed_place(member, member.id, link_rate) for member in placed}
    return {member.id: assumed_place(member, member.host, ASSUMED_NIC) for member in placed}


def assumed_place(member: Member, host: str, nic: float) -> TopologyPlace:
    return TopologyPlace(
        id=member.id,
        host=host,
        leaf="leaf0",
        domain=host if member.service == "worker" else None,
        nic=host,
        nic_in=nic,
        nic_out=nic,
        uplink_in=0.0,
        uplink_out=0.0,
        domain_bandwidth=ASSUMED_MEMORY,
        host_link=ASSUMED_MEMORY,
        disk=ASSUMED_DISK,
        machine=member.host,
    )
