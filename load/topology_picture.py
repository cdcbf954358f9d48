"""Draws a topology: leaves, the hosts below them, their GPUs, and what each link carries.

Each host has a card while hosts are few; otherwise all that are equal share one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import matplotlib as mpl
import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from livescale.load.pictures import BLUE, GREEN, INK, ORANGE, STYLE, VIOLET, render_svg
from livescale.services.cli.topology import GpuKind, HostKind, Kinds, both_ways, group_gpus, name_all, summary, uplink
from livescale.shared.topology.topology import Leaf, Topology, TopologyHost
from livescale.shared.units import format_rate, format_size

FEW_HOSTS = 8
MOST_CARDS = 12
LONGEST_TITLE = 22
# All lengths are inches. From the top: title, spine, leaves, cards.
MARGIN, TITLE, SPINE, LEAF = 0.25, 0.55, 0.75, 0.5
CARD, GAP, PADDING = 2.3, 0.3, 0.15
HEAD, NOTE, CAPTION, BAR = 0.38, 0.18, 0.42, 0.32
LINE, BESIDE = 0.17, 0.16  # a line of what is written beside a link, and how much longer the link is
STACKED = 0.07  # how far the cards behind stick out, where one stands for several hosts
INNER = CARD - 2 * PADDING
FEW_GPUS, MOST_GPUS = 8, 32
SMALL, PLAIN, LARGE = 8, 9, 11


class HostCard(msgspec.Struct, frozen=True):
    """A host, or several that are equal: then `note` says how many."""

    title: str
    kind: HostKind
    note: str = ""

    @property
    def links(self) -> list[str]:
        """What is written between the host's memory and its GPUs."""
        rates = dict.fromkeys(format_rate(gpu.host_link) for gpu in self.kind.gpus)
        return [*rates, "each GPU"]

    @property
    def disk(self) -> list[str]:
        """What is written between the host's disk and its memory."""
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


def draw_topology(topology: Topology) -> str:
    """Return the picture as the text of an SVG file."""
    cards = arrange(topology)
    hosts = [host for leaf in cards.leaves for host in leaf.hosts]
    widths = [leaf_width(leaf) for leaf in cards.leaves]
    spine = SPINE if len(topology.leaves) > 1 else 0.0
    nic = max((link_height(host.nics) for host in hosts), default=0.0)
    deepest = max((card_height(host) for host in hosts), default=0.0)
    width = max(sum(widths) + GAP * (len(widths) - 1) + 2 * MARGIN, 5.0)
    height = 2 * MARGIN + TITLE + spine + LEAF + nic + deepest + (CAPTION if cards.left_out else 0.0)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        painter = Painter(figure.add_axes((0, 0, 1, 1)), width, height)
        painter.text(MARGIN, height - MARGIN - 0.1, topology.name, size=LARGE, weight="bold", ha="left")
        painter.text(MARGIN, height - MARGIN - 0.32, summary(topology), ha="left")
        x, top = MARGIN, height - MARGIN - TITLE - spine
        if spine:
            painter.paint_spine(MARGIN, top + SPINE - 0.2, width - 2 * MARGIN)
        for leaf, leaf_wide in zip(cards.leaves, widths, strict=True):
            painter.paint_leaf(leaf, x, top, leaf_wide, nic, has_spine=bool(spine))
            x += leaf_wide + GAP
        painter.text(MARGIN, MARGIN, cards.left_out, ha="left")
        return render_svg(figure, f"Topology of {topology.name}")


def leaf_width(leaf: LeafCard) -> float:
    return max(len(leaf.hosts), 1) * (CARD + GAP) - GAP


def gpu_columns(kind: HostKind) -> int:
    return 4 if len(kind.gpus) <= FEW_GPUS else 8


def gpu_rows(kind: HostKind, count: int) -> int:
    return -(-min(count, MOST_GPUS) // gpu_columns(kind))


def gpu_side(kind: HostKind) -> float:
    """The side of a GPU's square, with the gap after it."""
    return (INNER - 2 * PADDING) / gpu_columns(kind)


def domain_height(kind: HostKind, count: int) -> float:
    return PADDING + gpu_rows(kind, count) * gpu_side(kind) + CAPTION


def head_height(host: HostCard) -> float:
    return HEAD + (NOTE if host.note else 0.0)


def link_height(lines: Sequence[str]) -> float:
    """At least two lines, so that few words make no short link."""
    return BESIDE + LINE * max(len(lines), 2)


def card_height(host: HostCard) -> float:
    groups = [domain_height(host.kind, len(indices)) + PADDING for _, indices in group_gpus(host.kind)]
    gpus = sum(groups) - PADDING + link_height(host.links) if groups else 0.0
    return head_height(host) + gpus + BAR + link_height(host.disk) + BAR + PADDING


class Painter:
    """Paints in inches from the lower left corner."""

    def __init__(self, axes: Axes, width: float, height: float) -> None:
        self._axes = axes
        axes.set_xlim(0, width)
        axes.set_ylim(0, height)
        axes.axis("off")

    def text(
        self, x: float, y: float, text: str, *, size: int = PLAIN, weight: str = "normal", ha: str = "center"
    ) -> None:
        self._axes.text(x, y, text, size=size, weight=weight, ha=ha, va="center", color=INK)

    def box(
        self, x: float, top: float, width: float, height: float, colour: str, alpha: float = 0.15, line: str = "-"
    ) -> None:
        shape = f"round,pad=0,rounding_size={min(0.06, height / 4)}"
        face, edge = (colour, alpha), (colour, 0.9)
        self._axes.add_patch(
            FancyBboxPatch((x, top - height), width, height, shape, facecolor=face, edgecolor=edge, linestyle=line)
        )

    def link(self, x: float, low: float, high: float, *labels: str) -> None:
        """A line upwards with what it carries written beside it."""
        self._axes.plot([x, x], [low, high], color=INK, linewidth=1.2, alpha=0.6, solid_capstyle="butt")
        for row, label in enumerate(labels):
            y = (low + high) / 2 + ((len(labels) - 1) / 2 - row) * LINE
            self.text(x + 0.08, y, label, size=SMALL, ha="left")

    def paint_spine(self, x: float, top: float, width: float) -> None:
        self.box(x, top, width, 0.2, INK, alpha=0.05)
        self.text(x + width / 2, top - 0.1, "spine", size=SMALL)

    def paint_leaf(self, leaf: LeafCard, x: float, top: float, width: float, nic: float, *, has_spine: bool) -> None:
        """The switch, its uplink, and its hosts, `nic` below."""
        self.box(x, top, width, LEAF, VIOLET)
        self.text(x + width / 2, top - LEAF / 2, leaf.title, weight="bold")
        if has_spine:
            self.link(x + width / 2, top, top + SPINE - 0.4, f"uplink {leaf.uplink}")
        for host in leaf.hosts:
            self.link(x + CARD / 2, top - LEAF - nic, top - LEAF, *host.nics)
            self.paint_host(host, x, top - LEAF - nic)
            x += CARD + GAP

    def paint_host(self, host: HostCard, x: float, top: float) -> None:
        self.box(x, top, CARD, card_height(host), INK, alpha=0.03)
        if host.note:
            self.paint_edges(x, top, CARD, card_height(host))
        self.text(x + PADDING, top - 0.2, host.title, weight="bold", ha="left")
        self.text(x + PADDING, top - HEAD, host.note, size=SMALL, ha="left")
        left, y = x + PADDING, top - head_height(host)
        for gpu, indices in group_gpus(host.kind):
            self.paint_gpus(host.kind, gpu, indices, left, y)
            y -= domain_height(host.kind, len(indices)) + PADDING
        if host.kind.gpus:
            y += PADDING
            low = y - link_height(host.links)
            self.link(x + CARD / 2, low, y, *host.links)
            y = low
        self.paint_bar(left, y, f"memory {format_size(host.kind.memory_bytes)}", ORANGE)
        low = y - BAR - link_height(host.disk)
        self.link(x + CARD / 2, low, y - BAR, *host.disk)
        self.paint_bar(left, low, "disk", INK)

    def paint_edges(self, x: float, top: float, width: float, height: float) -> None:
        """Paint the edges of two more cards behind a card, which stands for several hosts."""
        for stick in (STACKED, 2 * STACKED):
            right, low = x + width + stick, top - height - stick
            self._axes.plot([right, right, x + stick], [top - stick, low, low], color=INK, linewidth=1, alpha=0.6)

    def paint_bar(self, x: float, top: float, label: str, colour: str) -> None:
        self.box(x, top, INNER, BAR, colour)
        self.text(x + INNER / 2, top - BAR / 2, label)

    def paint_gpus(self, kind: HostKind, gpu: GpuKind, indices: list[int], x: float, top: float) -> None:
        """Squares, in a box that is drawn solid where they are one domain."""
        colour, dashes = (BLUE, "-") if gpu.joined > 1 else (INK, ":")
        self.box(x, top, INNER, domain_height(kind, len(indices)), colour, alpha=0.08, line=dashes)
        side, columns = gpu_side(kind), min(gpu_columns(kind), len(indices))
        first = x + (INNER - columns * side) / 2
        for place, index in enumerate(indices[:MOST_GPUS]):
            row, column = divmod(place, columns)
            left, high = first + column * side, top - PADDING - row * side
            self.box(left + 0.03, high - 0.03, side - 0.06, side - 0.06, GREEN, alpha=0.3)
            self.text(left + side / 2, high - side / 2, str(index), size=SMALL)
        y = top - PADDING - gpu_rows(kind, len(indices)) * side
        for row, line in enumerate(captions(gpu, len(indices))):
            self.text(x + INNER / 2, y - 0.12 - row * LINE, line, size=SMALL)


def captions(gpu: GpuKind, count: int) -> Iterator[str]:
    yield f"{count} x {format_size(gpu.memory_bytes)}" if count > 1 else format_size(gpu.memory_bytes)
    if gpu.joined == 1:
        yield "in no domain"
    else:
        yield f"domain {format_rate(gpu.bandwidth)}" + ("" if gpu.domain is not None else f", {gpu.joined} GPUs")
