"""A cluster as planners and links see it: hosts, GPUs, scale-up domains, leaf switches and what each link carries.

Rates are bytes a second and direction. A topology that exists is whole: ids are unique and lead somewhere.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Literal

import msgspec


class TopologyError(ValueError):
    """What is wrong with a topology. `owner` is the host, GPU, domain or leaf, `field` the one of it that is wrong."""

    def __init__(self, owner: str, field: str, problem: str) -> None:
        super().__init__(f"{owner or 'topology'}: {field}: {problem}")
        self.owner = owner
        self.field = field
        self.problem = problem


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a topology."""


class Gpu(Part, frozen=True, kw_only=True):
    """`id` is "<host>/<index>". `nic_in` and `nic_out` are of its own NIC, 0 where it uses its host's.

    `host_link`: between it and its host's memory, each direction.
    """

    id: str
    domain: str
    memory_bytes: int
    nic_in: float = 0.0
    nic_out: float = 0.0
    host_link: float


class Host(Part, frozen=True, kw_only=True):
    """A machine. Its NIC serves its memory and the GPUs without a NIC of their own; `disk` is for reading."""

    id: str
    leaf: str
    gpus: list[Gpu]
    memory_bytes: int
    nic_in: float
    nic_out: float
    disk: float


class Domain(Part, frozen=True, kw_only=True):
    """A scale-up (NVLink) domain: `bandwidth` per GPU and direction, 0 for a GPU that is alone."""

    id: str
    bandwidth: float = 0.0


class Leaf(Part, frozen=True, kw_only=True):
    """A leaf switch: what comes in from and goes out to the other leaves; 0 is non-blocking."""

    id: str
    uplink_in: float = 0.0
    uplink_out: float = 0.0


class Resource(msgspec.Struct, frozen=True):
    """What flows contend for: one direction of one link. `owner` is a GPU, a host or a leaf."""

    kind: Literal["nic_out", "nic_in", "uplink_out", "uplink_in", "domain_out", "domain_in", "link_out", "link_in"]
    owner: str
    rate: float


class Path(msgspec.Struct, frozen=True):
    """How bytes get from one place to another. Nothing limits a path without resources."""

    over: Literal["network", "domain", "host_link", "local"]
    resources: tuple[Resource, ...] = ()

    @property
    def rate(self) -> float:
        """What a flow that is alone gets."""
        return min((resource.rate for resource in self.resources), default=float("inf"))


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a GPU or a host's memory is, and what its links carry.

    `nic` is who owns its NIC: GPUs without one share their host's. A host's memory has no domain and no host link.
    """

    id: str
    host: str
    leaf: str
    domain: str | None
    nic: str
    nic_in: float
    nic_out: float
    domain_bandwidth: float
    host_link: float
    disk: float


class Topology(Part, frozen=True, kw_only=True, dict=True):
    """A cluster. Raises TopologyError where it is not whole."""

    name: str
    hosts: list[Host]
    domains: list[Domain]
    leaves: list[Leaf]

    @property
    def gpus(self) -> list[Gpu]:
        """In the order of hosts, then of each host's GPUs."""
        return [gpu for host in self.hosts for gpu in host.gpus]

    @cached_property
    def places(self) -> Mapping[str, Place]:
        """Every GPU and every host's memory by id."""
        bandwidths = {domain.id: domain.bandwidth for domain in self.domains}
        return {place.id: place for host in self.hosts for place in places_of(host, bandwidths)}

    def place_of(self, id: str) -> Place:
        """Of a GPU or a host. Raises KeyError."""
        return self.places[id]

    def path(self, sender: str, receiver: str) -> Path:
        """What a flow uses; both ends are ids of GPUs or hosts. Raises KeyError."""
        return path_between(self.places[sender], self.places[receiver], self._uplinks)

    @cached_property
    def _uplinks(self) -> Mapping[str, Leaf]:
        return {leaf.id: leaf for leaf in self.leaves}


def places_of(host: Host, bandwidths: Mapping[str, float]) -> Iterable[Place]:
    """The host's memory and its GPUs."""
    yield Place(
        id=host.id,
        host=host.id,
        leaf=host.leaf,
        domain=None,
        nic=host.id,
        nic_in=host.nic_in,
        nic_out=host.nic_out,
        domain_bandwidth=0.0,
        host_link=0.0,
        disk=host.disk,
    )
    for gpu in host.gpus:
        owner = gpu if gpu.nic_in else host
        yield Place(
            id=gpu.id,
            host=host.id,
            leaf=host.leaf,
            domain=gpu.domain,
            nic=owner.id,
            nic_in=owner.nic_in,
            nic_out=owner.nic_out,
            domain_bandwidth=bandwidths[gpu.domain],
            host_link=gpu.host_link,
            disk=host.disk,
        )


def path_between(sender: Place, receiver: Place, leaves: Mapping[str, Leaf]) -> Path:
    if sender.id == receiver.id:
        return Path("local")
    if sender.domain is not None and sender.domain == receiver.domain:
        return Path(
            "domain",
            (
                Resource("domain_out", sender.id, sender.domain_bandwidth),
                Resource("domain_in", receiver.id, receiver.domain_bandwidth),
            ),
        )
    if sender.host == receiver.host:
        return Path("host_link", within_host(sender, receiver))
    return Path("network", across_network(sender, receiver, leaves))


def within_host(sender: Place, receiver: Place) -> tuple[Resource, ...]:
    """Through the host's memory, where an end that is that memory itself crosses no link."""
    out = () if sender.domain is None else (Resource("link_out", sender.id, sender.host_link),)
    into = () if receiver.domain is None else (Resource("link_in", receiver.id, receiver.host_link),)
    return (*out, *into)


def across_network(sender: Place, receiver: Place, leaves: Mapping[str, Leaf]) -> tuple[Resource, ...]:
    out = Resource("nic_out", sender.nic, sender.nic_out)
    into = Resource("nic_in", receiver.nic, receiver.nic_in)
    if sender.leaf == receiver.leaf:
        return (out, into)
    up = Resource("uplink_out", sender.leaf, leaves[sender.leaf].uplink_out)
    down = Resource("uplink_in", receiver.leaf, leaves[receiver.leaf].uplink_in)
    return (out, *(uplink for uplink in (up, down) if uplink.rate), into)
