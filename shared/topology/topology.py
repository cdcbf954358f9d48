"""A cluster as planners and links see it: hosts, GPUs, scale-up domains, leaf switches and what each link carries.

Rates are bytes a second and direction. A topology that exists is whole: ids are unique and lead somewhere.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from livescale.shared.topology.paths import FlowPath, TopologyPlace, path_between

Rate = Annotated[float, Meta(gt=0, le=1e15)]
RateOrNone = Annotated[float, Meta(ge=0, le=1e15)]
SizeBytes = Annotated[int, Meta(ge=1, le=2**53 - 1)]

# Low estimates for machines that do not say: a network card, a SATA disk, one core that copies memory.
ASSUMED_NIC = 1e9 / 8
ASSUMED_DISK = 0.5e9
ASSUMED_MEMORY = 2e9

PartKind = Literal["host", "gpu", "domain", "leaf"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class TopologyError(ValueError):
    """An error in a topology; it knows which part is wrong, and where in that part."""

    def __init__(self, kind: PartKind, owner: str, field: str, problem: str) -> None:
        super().__init__(f"{kind} {owner} {field}: {problem}" if owner else f"{field}: {problem}")
        self.kind = kind
        self.owner = owner
        self.field = field
        self.problem = problem


class TopologyPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base class of all parts of a topology."""


class Gpu(TopologyPart, frozen=True, kw_only=True):
    """`id` is "<host>/<index>". `nic_in` and `nic_out` are of its own NIC, 0 where it uses its host's.

    `host_link`: between it and its host's memory, each direction.
    """

    id: str
    domain: str
    memory_bytes: SizeBytes
    nic_in: RateOrNone = 0.0
    nic_out: RateOrNone = 0.0
    host_link: Rate


class TopologyHost(TopologyPart, frozen=True, kw_only=True):
    """A machine. Its NIC serves its memory and the GPUs without a NIC of their own; `disk` is for reading."""

    id: str
    leaf: str
    gpus: list[Gpu]
    memory_bytes: SizeBytes
    nic_in: Rate
    nic_out: Rate
    disk: Rate


class Domain(TopologyPart, frozen=True, kw_only=True):
    """A scale-up (NVLink) domain: `bandwidth` per GPU and direction, 0 for a GPU that is alone."""

    id: str
    bandwidth: RateOrNone = 0.0


class Leaf(TopologyPart, frozen=True, kw_only=True):
    """A leaf switch: what comes in from and goes out to the other leaves; 0 is non-blocking."""

    id: str
    uplink_in: RateOrNone = 0.0
    uplink_out: RateOrNone = 0.0


class Topology(TopologyPart, frozen=True, kw_only=True, dict=True):
    """A cluster. Raises TopologyError where it is not whole."""

    name: str
    hosts: list[TopologyHost]
    domains: list[Domain]
    leaves: list[Leaf]

    def __post_init__(self) -> None:
        check_names(self)
        check_references(self)
        check_links(self)

    @property
    def gpus(self) -> list[Gpu]:
        """All GPUs, in the order of hosts and then of each host's GPUs."""
        return [gpu for host in self.hosts for gpu in host.gpus]

    @cached_property
    def places(self) -> Mapping[str, TopologyPlace]:
        """The place of every host's memory and of every GPU, by id."""
        bandwidths = {domain.id: domain.bandwidth for domain in self.domains}
        leaves = {leaf.id: leaf for leaf in self.leaves}
        return {place.id: place for host in self.hosts for place in places_of(host, leaves[host.leaf], bandwidths)}

    @property
    def slowest_nic(self) -> float:
        """The least rate of any network card, in either direction, in bytes a second."""
        return min(min(place.nic_in, place.nic_out) for place in self.places.values())

    @cached_property
    def fastest_nic(self) -> float:
        """The highest rate of any network card, in either direction, in bytes a second."""
        return max(max(place.nic_in, place.nic_out) for place in self.places.values())

    def place_of(self, id: str) -> TopologyPlace:
        """The place of a GPU or a host's memory. Raises KeyError."""
        return self.places[id]

    def path(self, sender: str, receiver: str) -> FlowPath:
        """The path of a flow from one GPU or host's memory to another. Raises KeyError."""
        return path_between(self.places[sender], self.places[receiver])


def places_of(host: TopologyHost, leaf: Leaf, bandwidths: Mapping[str, float]) -> Iterator[TopologyPlace]:
    """The places of a host: its memory, then its GPUs. `bandwidths` are given by domain."""
    memory = TopologyPlace(
        id=host.id,
        host=host.id,
        leaf=leaf.id,
        nic=host.id,
        nic_in=host.nic_in,
        nic_out=host.nic_out,
        uplink_in=leaf.uplink_in,
        uplink_out=leaf.uplink_out,
        disk=host.disk,
    )
    yield memory
    for gpu in host.gpus:
        nic = gpu if gpu.nic_in else host
        yield msgspec.structs.replace(
            memory,
            id=gpu.id,
            domain=gpu.domain,
            nic=nic.id,
            nic_in=nic.nic_in,
            nic_out=nic.nic_out,
            domain_bandwidth=bandwidths[gpu.domain],
            host_link=gpu.host_link,
        )


def check_names(topology: Topology) -> None:
    """Check that every host, domain and leaf has a name of its own. Raises TopologyError."""
    if not topology.hosts:
        raise TopologyError("host", "", "hosts", "there is none; a cluster needs at least one")
    check_unique("host", [host.id for host in topology.hosts])
    check_unique("leaf", [leaf.id for leaf in topology.leaves])
    check_unique("domain", [domain.id for domain in topology.domains])


def check_unique(kind: PartKind, ids: Iterable[str]) -> None:
    for id, count in Counter(ids).items():
        # A domain may be called as the GPU that it is of.
        words = id.split("/") if kind == "domain" else [id]
        if not all(map(NAME.fullmatch, words)):
            raise TopologyError(
                kind, id, "name", f"{id!r} is not a valid name: begin with a letter or digit; . _ and - may follow"
            )
        if count > 1:
            raise TopologyError(kind, id, "name", f"{id!r} is the name of {count}; give each {kind} one of its own")


def check_references(topology: Topology) -> None:
    """Check that leaves and domains that are named exist. Raises TopologyError."""
    leaves = {leaf.id for leaf in topology.leaves}
    domains = {domain.id for domain in topology.domains}
    for host in topology.hosts:
        if host.leaf not in leaves:
            raise TopologyError("host", host.id, "leaf", missing("leaf", host.leaf, leaves))
        for index, gpu in enumerate(host.gpus):
            if gpu.id != f"{host.id}/{index}":
                raise TopologyError("gpu", gpu.id, "id", f"a GPU is called HOST/INDEX, so this one {host.id}/{index}")
            if gpu.domain not in domains:
                raise TopologyError("gpu", gpu.id, "domain", missing("domain", gpu.domain, domains))


def missing(kind: PartKind, id: str, known: Iterable[str]) -> str:
    names = sorted(known)
    listed = ", ".join(names[:8]) + (" and more" if len(names) > 8 else "")
    return f"there is no {kind} {id!r}; " + (f"there are {listed}" if names else "none is declared")


def check_links(topology: Topology) -> None:
    """Check that NICs have both directions, and shared domains a bandwidth. Raises TopologyError."""
    for gpu in topology.gpus:
        if (gpu.nic_in > 0) != (gpu.nic_out > 0):
            problem = "it has one direction; give both, or neither to use the host's"
            raise TopologyError("gpu", gpu.id, "nic", problem)
    sizes = Counter(gpu.domain for gpu in topology.gpus)
    for domain in topology.domains:
        if sizes[domain.id] > 1 and not domain.bandwidth:
            problem = f"it joins {sizes[domain.id]} GPUs, so it must be more than zero"
            raise TopologyError("domain", domain.id, "bandwidth", problem)
