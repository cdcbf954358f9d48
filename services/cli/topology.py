"""`livescale topology` shows a cluster as tables, and draws it.

Hosts that are equal in all but their names are one row; rates have the units that their field uses.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click
import msgspec

from livescale.services.cli.groups import load_module
from livescale.services.cli.tables import open_console, print_rows
from livescale.shared.topology.detect import detect
from livescale.shared.topology.file import find_topology, shipped_topologies
from livescale.shared.topology.topology import Gpu, Leaf, Topology, TopologyHost
from livescale.shared.units import format_bit_rate, format_rate, format_size

EPILOG = f"""
A topology file lists hosts, their GPUs, scale-up domains and leaf switches. Values have their unit: 64 GiB, 100 Gbps,
12.5 GB/s. An entry with a count stands for that many equal ones.

\b
  leaves:                     # without leaves all hosts are on one non-blocking switch
    - name: leaf              # leaf0 ... leaf3
      count: 4
      uplink: 1.6 Tbps        # or uplink-in and uplink-out; without it non-blocking
  hosts:
    - name: a                 # a0 ... a15, dealt to the leaves in order, 4 each
      count: 16
      leaf: leaf
      memory: 1 TiB
      nic: 100 Gbps           # or nic-in and nic-out; also used by GPUs without a NIC
      disk: 1.25 GB/s
      gpus:
        - count: 8            # a0/0 ... a0/7
          memory: 80 GB
          nic: 100 Gbps       # without it the GPU uses the host's NIC
          host-link: 16 GB/s
          scale-up: 200 GB/s  # these 8 are one domain; without it each is alone

A domain that spans several hosts is declared under domains, with name and bandwidth; its GPUs name it by the key
domain.

Shipped topologies: {", ".join(shipped_topologies())}.
"""


class HostRow(msgspec.Struct, frozen=True):
    """Hosts that are equal in all but their names."""

    hosts: str
    count: int
    leaf: str
    memory: str
    nic: str
    disk: str


class GpuRow(msgspec.Struct, frozen=True):
    """GPUs that each of these hosts has. `domain` says how many GPUs are joined, and at which rate."""

    hosts: str
    gpus: str
    memory: str
    nic: str
    host_link: str
    domain: str


class LeafRow(msgspec.Struct, frozen=True):
    """Leaf switches whose uplinks have the same rates."""

    leaves: str
    count: int
    uplink: str


class GpuKind(msgspec.Struct, frozen=True):
    """All of a GPU but its name. `domain` is its domain's name within the host, None where other hosts share it."""

    memory_bytes: int
    nic_in: float
    nic_out: float
    host_link: float
    domain: str | None
    bandwidth: float
    joined: int


class HostKind(msgspec.Struct, frozen=True):
    """All of a host but its names. Hosts of the same kind are equal."""

    memory_bytes: int
    nic_in: float
    nic_out: float
    disk: float
    gpus: tuple[GpuKind, ...]


class Kinds:
    """Finds the kind of each host of a topology."""

    def __init__(self, topology: Topology) -> None:
        self._bandwidths = {domain.id: domain.bandwidth for domain in topology.domains}
        self._joined = Counter(gpu.domain for gpu in topology.gpus)

    def of(self, host: TopologyHost) -> HostKind:
        gpus = tuple(self._gpu_kind(host, gpu) for gpu in host.gpus)
        return HostKind(host.memory_bytes, host.nic_in, host.nic_out, host.disk, gpus)

    def _gpu_kind(self, host: TopologyHost, gpu: Gpu) -> GpuKind:
        here = sum(other.domain == gpu.domain for other in host.gpus)
        joined = self._joined[gpu.domain]
        name = gpu.domain.removeprefix(host.id) if here == joined else None
        bandwidth = self._bandwidths[gpu.domain]
        return GpuKind(gpu.memory_bytes, gpu.nic_in, gpu.nic_out, gpu.host_link, name, bandwidth, joined)


def group_hosts(topology: Topology) -> list[tuple[HostKind, list[TopologyHost]]]:
    """Hosts by kind, kinds in the order of their first host."""
    kinds = Kinds(topology)
    groups: dict[HostKind, list[TopologyHost]] = {}
    for host in topology.hosts:
        groups.setdefault(kinds.of(host), []).append(host)
    return list(groups.items())


def host_rows(topology: Topology) -> list[HostRow]:
    return [
        HostRow(
            hosts=name_all(host.id for host in hosts),
            count=len(hosts),
            leaf=name_all(dict.fromkeys(host.leaf for host in hosts)),
            memory=format_size(kind.memory_bytes),
            nic=both_ways(kind.nic_in, kind.nic_out),
            disk=format_rate(kind.disk),
        )
        for kind, hosts in group_hosts(topology)
    ]


def gpu_rows(topology: Topology) -> list[GpuRow]:
    return [
        GpuRow(
            hosts=name_all(host.id for host in hosts),
            gpus=name_all(map(str, indices)),
            memory=format_size(gpu.memory_bytes),
            nic=both_ways(gpu.nic_in, gpu.nic_out) if gpu.nic_in else "the host's",
            host_link=format_rate(gpu.host_link),
            domain=describe_domain(gpu),
        )
        for kind, hosts in group_hosts(topology)
        for gpu, indices in group_gpus(kind)
    ]


def group_gpus(kind: HostKind) -> list[tuple[GpuKind, list[int]]]:
    """GPUs that follow each other and are equal: those of one domain, and those that are alone."""
    numbered = list(
        enumerate(msgspec.structs.replace(gpu, domain=None) if gpu.joined == 1 else gpu for gpu in kind.gpus)
    )
    return [(gpu, [index for index, _ in group]) for gpu, group in groupby(numbered, key=lambda each: each[1])]


def describe_domain(gpu: GpuKind) -> str:
    if gpu.joined == 1:
        return "each alone"
    return f"{gpu.joined} joined, {format_rate(gpu.bandwidth)}" + ("" if gpu.domain is not None else " across hosts")


def leaf_rows(topology: Topology) -> list[LeafRow]:
    groups: dict[tuple[float, float], list[Leaf]] = {}
    for leaf in topology.leaves:
        groups.setdefault((leaf.uplink_in, leaf.uplink_out), []).append(leaf)
    return [
        LeafRow(name_all(leaf.id for leaf in leaves), len(leaves), uplink(*rates)) for rates, leaves in groups.items()
    ]


def uplink(into: float, out: float) -> str:
    if into == out:
        return format_bit_rate(into) if into else "non-blocking"
    return ", ".join(
        f"{direction} {format_bit_rate(rate) if rate else 'non-blocking'}"
        for direction, rate in (("in", into), ("out", out))
    )


def both_ways(into: float, out: float) -> str:
    if into == out:
        return format_bit_rate(into)
    return f"in {format_bit_rate(into)}, out {format_bit_rate(out)}"


def name_all(ids: Iterable[str]) -> str:
    """`a0-a3 a7 b`: runs of numbers are shortened."""
    return " ".join(_runs(list(ids)))


def _runs(ids: Sequence[str]) -> Iterator[str]:
    def key(numbered: tuple[int, str]) -> tuple[str, int]:
        place, id = numbered
        stem, number = split_number(id)
        return (stem, number - place) if number >= 0 else (id, place)

    for _, group in groupby(enumerate(ids), key=key):
        run = [id for _, id in group]
        yield run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}"


def split_number(id: str) -> tuple[str, int]:
    """`a12` is a and 12; without a number at its end, -1."""
    match = re.fullmatch(r"(.*?)(0|[1-9][0-9]*)", id)
    return (match[1], int(match[2])) if match else (id, -1)


def summary(topology: Topology) -> str:
    def many(count: int, one: str, several: str) -> str:
        return f"{count} {one if count == 1 else several}"

    domains = sum(count > 1 for count in Counter(gpu.domain for gpu in topology.gpus).values())
    return ", ".join(
        (
            many(len(topology.hosts), "host", "hosts"),
            many(len(topology.gpus), "GPU", "GPUs"),
            many(domains, "scale-up domain", "scale-up domains"),
            many(len(topology.leaves), "leaf", "leaves"),
        )
    )


@click.command(epilog=EPILOG)
@click.argument("topology", metavar="[FILE|NAME]", required=False)
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="SVG file to draw the cluster into.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object instead of tables, with sizes in bytes and rates in bytes/s.",
)
def topology(topology: str | None, svg: Path | None, as_json: bool) -> None:
    """Show a cluster: its hosts, GPUs, domains, leaves and what their links carry.

    FILE is a topology file, NAME a shipped topology. Without either, this machine is shown as far as it is detected.
    """
    found, assumed = look(topology)
    if as_json:
        click.echo(msgspec.json.encode(found))
    else:
        show(found, assumed)
    if svg is not None:
        draw(found, svg)


def look(text: str | None) -> tuple[Topology, Sequence[str]]:
    """The topology, and in words what of it is assumed rather than detected."""
    if text is None:
        detected = detect()
        return detected.topology, detected.assumed
    try:
        return find_topology(text), ()
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def draw(topology: Topology, path: Path) -> None:
    picture = load_module("livescale.load.topology_picture").draw_topology(topology)
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"--svg {path}: {error.strerror}") from None


def show(topology: Topology, assumed: Sequence[str]) -> None:
    console = open_console()
    console.print(f"[bold]{topology.name}[/bold]: {summary(topology)}\n")
    for title, rows in (
        ("Hosts", host_rows(topology)),
        ("GPUs of each host", gpu_rows(topology)),
        ("Leaves", leaf_rows(topology)),
    ):
        if rows:
            print_rows(console, title, rows)
    for note in assumed:
        console.print(f"assumed: {note}")
