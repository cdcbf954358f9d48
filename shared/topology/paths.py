"""How bytes get from one place of a cluster to another, and what they share on the way."""

from typing import Literal

import msgspec


class Resource(msgspec.Struct, frozen=True):
    """One direction of a link, which flows contend for. `owner` is a GPU, host or leaf; `rate` is in bytes a second."""

    kind: Literal["nic_out", "nic_in", "uplink_out", "uplink_in", "domain_out", "domain_in", "link_out", "link_in"]
    owner: str
    rate: float


class FlowPath(msgspec.Struct, frozen=True):
    """The resources that a flow passes, in order. A flow without any is not limited."""

    over: Literal["network", "domain", "host_link", "local"]
    resources: tuple[Resource, ...] = ()

    @property
    def rate(self) -> float:
        """Bytes a second that a flow gets where it is alone on the path."""
        return min((resource.rate for resource in self.resources), default=float("inf"))


class TopologyPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a GPU or a host's memory is, and what its links carry. A host's memory has no domain and no host link.

    `nic` is the owner of its NIC, as GPUs without one share their host's. Uplinks are those of its leaf; 0 is
    non-blocking. `machine` is given where links treat one machine as several hosts.
    """

    id: str
    host: str
    leaf: str
    domain: str | None = None
    nic: str
    nic_in: float
    nic_out: float
    uplink_in: float
    uplink_out: float
    domain_bandwidth: float = 0.0
    host_link: float = 0.0
    disk: float
    machine: str = ""


def path_between(sender: TopologyPlace, receiver: TopologyPlace) -> FlowPath:
    """The path between two places, by the fastest kind of link that joins them."""
    if sender.id == receiver.id:
        return FlowPath("local")
    if sender.domain is not None and sender.domain == receiver.domain:
        return FlowPath("domain", within_domain(sender, receiver))
    if sender.host == receiver.host:
        return FlowPath("host_link", within_host(sender, receiver))
    return FlowPath("network", across_network(sender, receiver))


def within_domain(sender: TopologyPlace, receiver: TopologyPlace) -> tuple[Resource, ...]:
    return (
        Resource("domain_out", sender.id, sender.domain_bandwidth),
        Resource("domain_in", receiver.id, receiver.domain_bandwidth),
    )


def within_host(sender: TopologyPlace, receiver: TopologyPlace) -> tuple[Resource, ...]:
    """The links through a host's memory. An end that is that memory itself crosses none."""
    out = () if sender.domain is None else (Resource("link_out", sender.id, sender.host_link),)
    into = () if receiver.domain is None else (Resource("link_in", receiver.id, receiver.host_link),)
    return (*out, *into)


def across_network(sender: TopologyPlace, receiver: TopologyPlace) -> tuple[Resource, ...]:
    out = Resource("nic_out", sender.nic, sender.nic_out)
    into = Resource("nic_in", receiver.nic, receiver.nic_in)
    if sender.leaf == receiver.leaf:
        return (out, into)
    up = Resource("uplink_out", sender.leaf, sender.uplink_out)
    down = Resource("uplink_in", receiver.leaf, receiver.uplink_in)
    return (out, *(uplink for uplink in (up, down) if uplink.rate), into)
