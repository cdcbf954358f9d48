"""Topology files: how they are found, read and checked. Those that are shipped lie in `shared/topologies`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from livescale.shared.runtime.yaml_file import convert, names_file, read_yaml, rename_keys, type_of
from livescale.shared.topology.topology import Domain, Gpu, Leaf, PartKind, Topology, TopologyError, TopologyHost
from livescale.shared.units import ByteRate, Size, parse_rate, parse_size

Many = Annotated[int, Meta(ge=1, le=100_000)]
Few = Annotated[int, Meta(ge=1, le=1024)]

NONE = ByteRate(0)  # a rate that a file leaves out: it can name none that is zero

SHIPPED = resources.files("livescale.shared") / "topologies"


class NamedEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry with a name. With a `count` it stands for so many, called NAME0, NAME1 and so on."""

    name: str
    count: Many | None = None

    @property
    def names(self) -> list[str]:
        return [self.name] if self.count is None else [f"{self.name}{index}" for index in range(self.count)]


class LeafEntry(NamedEntry, frozen=True, kw_only=True):
    """A leaf switch. `uplink` is the rate in both directions; a leaf without one is non-blocking."""

    uplink: ByteRate = NONE
    uplink_in: ByteRate = NONE
    uplink_out: ByteRate = NONE


class DomainEntry(NamedEntry, frozen=True, kw_only=True):
    """A scale-up domain that GPUs of several hosts share."""

    bandwidth: ByteRate


class GpuEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal GPUs of a host. `scale_up` is the bandwidth of a domain of their own, `domain` the name of a declared one.

    With neither, each is alone. Without a NIC they use the host's.
    """

    count: Few = 1
    memory: Size
    host_link: ByteRate
    nic: ByteRate = NONE
    nic_in: ByteRate = NONE
    nic_out: ByteRate = NONE
    scale_up: ByteRate = NONE
    domain: str = ""


class HostEntry(NamedEntry, frozen=True, kw_only=True):
    """A host.

    `nic` is the rate in both directions; `leaf` may be left out where the file has at most one leaf entry.
    """

    leaf: str = ""
    memory: Size
    nic: ByteRate = NONE
    nic_in: ByteRate = NONE
    nic_out: ByteRate = NONE
    disk: ByteRate
    gpus: tuple[GpuEntry, ...] = ()


class TopologyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. Without leaves, all hosts are on one that is non-blocking."""

    name: str = ""
    leaves: tuple[LeafEntry, ...] = (LeafEntry(name="leaf0"),)
    domains: tuple[DomainEntry, ...] = ()
    hosts: tuple[HostEntry, ...] = ()


def expand(file: TopologyFile, name: str) -> Topology:
    """The topology that a file describes.

    `name` is used where it states none. Raises ValueError with the place in it.
    """
    for index, entry in enumerate(file.hosts):
        check_entry(entry, file, f"hosts[{index}]")
    hosts = [host for entry in file.hosts for host in expand_host(entry, file)]
    try:
        return Topology(
            name=file.name or name,
            hosts=[make_host(host) for host in hosts],
            domains=[*expand_domains(file.domains), *(domain for host in hosts for domain in own_domains(host))],
            leaves=list(expand_leaves(file.leaves)),
        )
    except TopologyError as error:
        place = places_in(file).get((error.kind, error.owner))
        raise ValueError(f"{place}.{error.field}: {error.problem}" if place else str(error)) from None


def check_entry(entry: HostEntry, file: TopologyFile, place: str) -> None:
    """Check what an entry says by itself. Raises ValueError."""
    if not entry.nic and not (entry.nic_in and entry.nic_out):
        raise ValueError(f"{place}: nic is missing; give it, or both nic-in and nic-out")
    if not entry.leaf and len(file.leaves) != 1:
        names = ", ".join(leaf.name for leaf in file.leaves)
        raise ValueError(f"{place}: leaf is missing; " + (f"one of {names}" if names else "the file has none"))
    for number, group in enumerate(entry.gpus):
        if group.scale_up and group.domain:
            raise ValueError(
                f"{place}.gpus[{number}]: scale-up is for a domain of these GPUs alone and domain names a declared "
                "one; give one of the two"
            )


def expand_leaves(entries: Iterable[LeafEntry]) -> Iterator[Leaf]:
    for entry in entries:
        uplink_in, uplink_out = rate(entry.uplink_in, entry.uplink), rate(entry.uplink_out, entry.uplink)
        yield from (Leaf(id=name, uplink_in=uplink_in, uplink_out=uplink_out) for name in entry.names)


def expand_domains(entries: Iterable[DomainEntry]) -> Iterator[Domain]:
    for entry in entries:
        yield from (Domain(id=name, bandwidth=rate(entry.bandwidth)) for name in entry.names)


def expand_host(entry: HostEntry, file: TopologyFile) -> Iterator[HostEntry]:
    """Split an entry into one for each host, which refers to a single leaf and to single domains."""
    leaf = entry.leaf or file.leaves[0].name
    for turn, name in enumerate(entry.names):
        share = Fraction(turn, len(entry.names))
        own = (name if len(entry.gpus) == 1 else f"{name}.{number}" for number in range(len(entry.gpus)))
        gpus = tuple(
            replace(group, domain=domain if group.scale_up else deal(group.domain, file.domains, share))
            for group, domain in zip(entry.gpus, own, strict=True)
        )
        yield replace(entry, name=name, count=None, leaf=deal(leaf, file.leaves, share), gpus=gpus)


def deal(reference: str, entries: Sequence[NamedEntry], share: Fraction) -> str:
    """The name of one leaf or domain among those that `reference` stands for; hosts are dealt out evenly by `share`."""
    names = next((entry.names for entry in entries if entry.name == reference), [reference])
    return names[int(share * len(names))]


def make_host(entry: HostEntry) -> TopologyHost:
    groups = [group for group in entry.gpus for _ in range(group.count)]
    return TopologyHost(
        id=entry.name,
        leaf=entry.leaf,
        gpus=[make_gpu(f"{entry.name}/{index}", group) for index, group in enumerate(groups)],
        memory_bytes=int(entry.memory),
        nic_in=rate(entry.nic_in, entry.nic),
        nic_out=rate(entry.nic_out, entry.nic),
        disk=rate(entry.disk),
    )


def make_gpu(id: str, group: GpuEntry) -> Gpu:
    return Gpu(
        id=id,
        domain=group.domain or id,
        memory_bytes=int(group.memory),
        nic_in=rate(group.nic_in, group.nic),
        nic_out=rate(group.nic_out, group.nic),
        host_link=rate(group.host_link),
    )


def rate(own: ByteRate, both: ByteRate = NONE) -> float:
    """The rate of one direction: the one stated for itself, or else that for both."""
    return float(own or both)


def own_domains(entry: HostEntry) -> Iterator[Domain]:
    """The domains within a host: of GPUs that scale up together, or of each GPU that is alone."""
    first = 0
    for group in entry.gpus:
        if group.scale_up:
            yield Domain(id=group.domain, bandwidth=rate(group.scale_up))
        elif not group.domain:
            yield from (Domain(id=f"{entry.name}/{index}") for index in range(first, first + group.count))
        first += group.count


def places_in(file: TopologyFile) -> Mapping[tuple[PartKind, str], str]:
    """Where in the file each part comes from, as `hosts[0].gpus[1]`, by its kind and id."""
    found: dict[tuple[PartKind, str], str] = {}
    for number, leaf in enumerate(file.leaves):
        found |= {("leaf", name): f"leaves[{number}]" for name in leaf.names}
    for number, domain in enumerate(file.domains):
        found |= {("domain", name): f"domains[{number}]" for name in domain.names}
    for number, host in enumerate(file.hosts):
        found |= {("host", name): f"hosts[{number}]" for name in host.names}
        groups = [index for index, group in enumerate(host.gpus) for _ in range(group.count)]
        for name in host.names:
            found |= {
                ("gpu", f"{name}/{index}"): f"hosts[{number}].gpus[{group}]" for index, group in enumerate(groups)
            }
    return found


def find_topology(text: str) -> Topology:
    """The topology in a file, or the one that is shipped by this name. Raises ValueError."""
    if names_file(text):
        return read_topology(Path(text))
    names = shipped_topologies()
    if text not in names:
        raise ValueError(f"there is no topology {text!r}; give a YAML file or one of {', '.join(names)}")
    with resources.as_file(SHIPPED / f"{text}.yaml") as path:
        return read_topology(path)


def shipped_topologies() -> list[str]:
    return sorted(Path(entry.name).stem for entry in SHIPPED.iterdir())


def read_topology(path: Path) -> Topology:
    """Read a topology file. Raises ValueError that names the file, the place in it, and what to do."""
    content = read_yaml(path)
    try:
        values = rename_keys(content, type_of(TopologyFile))
        file = convert(values, TopologyFile, dec_hook=parse_quantity)
        assert isinstance(file, TopologyFile)
        return expand(file, path.stem)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse_quantity(kind: type, value: object) -> Size | ByteRate:
    return parse_size(value) if kind is Size else parse_rate(value)
