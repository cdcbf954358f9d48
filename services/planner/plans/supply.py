"""Where a model can come from at all: whole copies in memory, else parts of several holders, else disks. Pure."""

from collections.abc import Iterator, Sequence

from livescale.services.planner.plans.network import Multicast, Node, Source, Target, way
from livescale.services.planner.plans.plan import CannotPlan, Flow
from livescale.services.planner.plans.traffic import Traffic

SHOWN = 8


def find_whole(multicast: Multicast) -> list[Node]:
    """Who holds all that any target misses: in memory; on disk only where no memory holds any of it.

    Raises CannotPlan where nobody holds a block.
    """
    needed: frozenset[int] = frozenset().union(*{target.missing for target in multicast.targets})
    useful = [source for source in multicast.sources if source.blocks & needed]
    lost = sorted(needed.difference(*(source.blocks for source in useful)))
    if lost:
        raise CannotPlan(f"nobody holds blocks {name_some(lost)} of {len(multicast.block_bytes)}")
    memories = [source for source in useful if source.node.place != "disk"]
    return [source.node for source in memories or useful if source.blocks >= needed]


def name_some(things: Sequence[object]) -> str:
    more = f" and {len(things) - SHOWN} more" if len(things) > SHOWN else ""
    return ", ".join(map(str, things[:SHOWN])) + more


def collect(multicast: Multicast, target: Target, traffic: Traffic) -> Iterator[Flow]:
    """What one target misses, each block from somebody who holds it: from memory before disk, from who serving leaves
    free, and so that all are done at about the same time."""
    busy_until: dict[str, float] = {}
    given: dict[str, list[int]] = {}
    nodes: dict[str, Node] = {}
    for block in target.missing:
        size = multicast.block_bytes[block]
        holders = [source for source in multicast.sources if block in source.blocks]
        best = min(holders, key=lambda source: _cost(source, target, size, busy_until, traffic)).node
        busy_until[best.id] = busy_until.get(best.id, 0.0) + size / best.bandwidth
        given.setdefault(best.id, []).append(block)
        nodes[best.id] = best
    for id, blocks in given.items():
        yield Flow(id, target.node.id, tuple(blocks), over=way(nodes[id], target.node))


def _cost(
    source: Source, target: Target, size: int, busy_until: dict[str, float], traffic: Traffic
) -> tuple[bool, bool, float, tuple[int, str]]:
    node = source.node
    interferes = way(node, target.node) == "network" and traffic.is_busy(node, "out")
    return node.place == "disk", interferes, busy_until.get(node.id, 0.0) + size / node.bandwidth, node.name
