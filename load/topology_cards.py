"""What of a topology is drawn: a card for each host while they are few, else one for all that are equal (pure)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from livescale.services.cli.topology import HostKind, Kinds, both_ways, name_all, uplink
from livescale.shared.topology.topology import Leaf, Topology, TopologyHost
from livescale.shared.units import format_rate

FEW_HOSTS = 8
MOST_CARDS = 12
LONGEST_TITLE = 22


class HostCard(msgspec.Struct, frozen=True):
    """A host, or several that are equal: then `note` says how many."""

    title: str
    kind: HostKind
    note: str = ""

    @property
    def links(self) -> list[str]:
        """Between its memory and its GPUs."""
        rates = dict.fromkeys(format_rate(gpu.host_link) for gpu in self.kind.gpus)
        return [*rates, "each GPU"]

    @property
    def disk(self) -> list[str]:
        """Between it and the memory."""
        return [format_rate(self.kind.disk)]

    @property
    def nics(self) -> list[str]:
        """What goes from it to its leaf, a line each: the GPUs' own, and the one of its memory."""
        memory = both_ways(self.kind.nic_in, self.kind.nic_out)
        own = Counter(both_ways(gpu.nic_in, gpu.nic_out) for gpu in self.kind.gpus if gpu.nic_in)
        lines = [*(f"GPUs {count} x {rate}" for rate, count in own.items()), f"memory {memory}" if own else memory]
        return [half for line in lines for half in line.split(", ")]


class LeafCard(msgspec.Struct, frozen=True):
    """A leaf switch, or several with equal hosts."""

    title: str
    uplink: str
    hosts: tuple[HostCard, ...]


class Cards(msgspec.Struct, frozen=True):
    """All that is drawn. `left_out` says what is not, and is empty where that is nothing."""

    leaves: tuple[LeafCard, ...]
    left_out: str = ""


def arrange(topology: Topology) -> Cards:
    """Cards in the order of leaves; what is too much to look at is counted instead."""
    below: dict[str, list[TopologyHost]] = {leaf.id: [] for leaf in topology.leaves}
    for host in topology.hosts:
        below[host.leaf].append(host)
    kinds = Kinds(topology)
    if len(topology.hosts) <= FEW_HOSTS and len(topology.leaves) <= FEW_HOSTS:
        return Cards(tuple(single_leaf(leaf, below[leaf.id], kinds) for leaf in topology.leaves))
    groups: dict[object, list[Leaf]] = {}
    for leaf in topology.leaves:
        counts = Counter(kinds.of(host) for host in below[leaf.id])
        groups.setdefault((leaf.uplink_in, leaf.uplink_out, tuple(counts.items())), []).append(leaf)
    return trim([grouped_leaves(leaves, below, kinds) for leaves in groups.values()])


def single_leaf(leaf: Leaf, hosts: Sequence[TopologyHost], kinds: Kinds) -> LeafCard:
    cards = tuple(HostCard(host.id, kinds.of(host)) for host in hosts)
    return LeafCard(leaf.id, uplink(leaf.uplink_in, leaf.uplink_out), cards)


def grouped_leaves(leaves: Sequence[Leaf], below: Mapping[str, Sequence[TopologyHost]], kinds: Kinds) -> LeafCard:
    """A card for leaves whose hosts are of the same kinds, as many of each."""
    names: dict[HostKind, list[str]] = {}
    for leaf in leaves:
        for host in below[leaf.id]:
            names.setdefault(kinds.of(host), []).append(host.id)
    hosts = tuple(HostCard(shorten(ids), kind, describe_count(len(ids), len(leaves))) for kind, ids in names.items())
    title = shorten([leaf.id for leaf in leaves]) + (f" ({len(leaves)} leaves)" if len(leaves) > 1 else "")
    return LeafCard(title, uplink(leaves[0].uplink_in, leaves[0].uplink_out), hosts)


def describe_count(hosts: int, leaves: int) -> str:
    if hosts == 1:
        return ""
    return f"{hosts} equal hosts" if leaves == 1 else f"{hosts} equal hosts, {hosts // leaves} a leaf"


def shorten(ids: Sequence[str]) -> str:
    names = name_all(ids)
    return names if len(names) <= LONGEST_TITLE else f"{ids[0]} … {ids[-1]}"


def trim(leaves: Iterable[LeafCard]) -> Cards:
    """The first cards of hosts, and how many kinds of hosts they leave out."""
    kept: list[LeafCard] = []
    room, left_out = MOST_CARDS, 0
    for leaf in leaves:
        shown = leaf.hosts[:room]
        left_out += len(leaf.hosts) - len(shown)
        room -= len(shown)
        if shown:
            kept.append(msgspec.structs.replace(leaf, hosts=shown))
    return Cards(tuple(kept), f"{left_out} more kinds of hosts are not drawn" if left_out else "")
