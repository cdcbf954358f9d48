"""Clusters, multicasts and plans for tests. Rates are 1 byte/s where nothing else is said."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from hypothesis import assume
from hypothesis import strategies as st

from livescale.services.planner.plans.flow_times import Links
from livescale.services.planner.plans.plan import (
    BlockSource,
    BlockTarget,
    Multicast,
    ServingFlow,
    TransferFlow,
    TransferPlan,
    multicast_over,
    node_at,
)
from livescale.shared.topology.topology import Domain, Gpu, Leaf, Topology, TopologyHost

BLOCKS = (100, 100, 100, 100)
EVERY = (0, 1, 2, 3)
CHUNK = 10


def machine(
    id: str,
    gpus: int = 1,
    *,
    leaf: str = "l0",
    nic: float = 1.0,
    own_nics: bool = True,
    joined: bool = True,
    host_nic: float = 1.0,
    host_link: float = 1.0,
    disk: float = 0.1,
) -> TopologyHost:
    """GPUs "<id>/<i>" with NICs of their own, in one domain called `id`."""
    return TopologyHost(
        id=id,
        leaf=leaf,
        memory_bytes=10**12,
        nic_in=host_nic,
        nic_out=host_nic,
        disk=disk,
        gpus=[
            Gpu(
                id=f"{id}/{index}",
                domain=id if joined else f"{id}/{index}",
                memory_bytes=10**11,
                nic_in=nic if own_nics else 0.0,
                nic_out=nic if own_nics else 0.0,
                host_link=host_link,
            )
            for index in range(gpus)
        ],
    )


def cluster(*hosts: TopologyHost, scale_up: float = 20.0, uplink: float = 0.0) -> Topology:
    domains = Counter(gpu.domain for host in hosts for gpu in host.gpus)
    leaves = {host.leaf: None for host in hosts}
    return Topology(
        name="made",
        hosts=list(hosts),
        domains=[Domain(id=id, bandwidth=scale_up if size > 1 else 0.0) for id, size in domains.items()],
        leaves=[Leaf(id=id, uplink_in=uplink, uplink_out=uplink) for id in leaves],
    )


def singles(count: int, prefix: str = "h", leaf: str = "l0", nic: float = 1.0) -> list[TopologyHost]:
    """Return hosts with one GPU each, named by the prefix and a number."""
    return [machine(f"{prefix}{index}", leaf=leaf, nic=nic) for index in range(count)]


SIX = cluster(*singles(6))


def parts(
    topology: Topology,
    held: Mapping[str, Iterable[int]],
    missing: Mapping[str, Sequence[int]],
    disks: Iterable[str] = (),
    serving: Iterable[ServingFlow] = (),
) -> Multicast:
    """A multicast in which holders hold, and targets miss, only some blocks."""
    places = topology.places
    sources = [BlockSource(node_at(places, id), frozenset(blocks)) for id, blocks in held.items()]
    disk_sources = [BlockSource(node_at(places, id, on_disk=True), frozenset(EVERY)) for id in disks]
    return Multicast(
        block_bytes=BLOCKS,
        sources=(*sources, *disk_sources),
        targets=tuple(BlockTarget(node_at(places, id), tuple(blocks)) for id, blocks in missing.items()),
        serving=tuple(serving),
    )


def hops(plan: TransferPlan, over: str = "network") -> list[tuple[str, str]]:
    """Return sender and receiver of all flows over this kind of link, each pair once."""
    return list(dict.fromkeys((flow.sender, flow.receiver) for flow in plan.flows if flow.over == over))


def flows_to(plan: TransferPlan, receiver: str) -> list[TransferFlow]:
    return [flow for flow in plan.flows if flow.receiver == receiver]


@st.composite
def multicasts(draw: st.DrawFn, *, partial: bool = True) -> Multicast:
    """Random clusters, copies, targets and serving traffic. There is a copy of each block somewhere."""
    rates = st.sampled_from([0.5, 1.0, 1.0, 2.0, 4.0])
    hosts = [
        machine(
            f"h{index}",
            draw(st.integers(1, 4)),
            leaf=draw(st.sampled_from(["l0", "l1", "l2"])),
            nic=draw(rates),
            own_nics=draw(st.booleans()),
            joined=draw(st.booleans()),
            host_nic=draw(rates),
            host_link=draw(rates),
            disk=draw(st.sampled_from([0.1, 3.0])),
        )
        for index in range(draw(st.integers(1, 5)))
    ]
    topology = cluster(*hosts, uplink=draw(st.sampled_from([0.0, 1.5])))
    ids = draw(st.permutations([gpu.id for gpu in topology.gpus]))
    cut = draw(st.integers(0, len(ids) - 1))
    memories = [host.id for host in hosts if draw(st.booleans())]
    holders = [*ids[:cut], *memories]
    disks = [host.id for host in hosts if host.id not in memories and draw(st.booleans())]
    if not holders and not disks:
        memories = holders = [hosts[0].id]
    serving = [
        ServingFlow(
            id,
            draw(st.sampled_from(["in", "out"])),
            draw(st.sampled_from([0.01, 0.3, 0.9])),
            draw(st.sampled_from(["nic", "nic", "domain", "link"])),
        )
        for id in [*ids, *memories]
        if draw(st.integers(0, 3)) == 0
    ]
    targets = ids[cut:]
    count = draw(st.integers(0, len(targets)))
    if not partial or draw(st.booleans()):
        return multicast_over(topology, BLOCKS, holders, targets, count=count, disks=disks, serving=serving)
    return scattered(draw, topology, holders, targets, disks, serving)


def scattered(
    draw: st.DrawFn,
    topology: Topology,
    holders: Sequence[str],
    targets: Sequence[str],
    disks: Sequence[str],
    serving: Sequence[ServingFlow],
) -> Multicast:
    """Holders hold, and targets miss, any blocks; what would be nowhere is at one of them."""
    some = st.sets(st.sampled_from(EVERY))
    held = {id: draw(some) for id in holders}
    missing = {id: draw(some) or {0} for id in targets}
    held |= {id: set(EVERY) - missing[id] for id in targets}
    if not disks:
        lucky = draw(st.sampled_from([*holders, *targets]))
        lost = set(EVERY) - set().union(*held.values())
        held[lucky] |= lost
        missing[lucky] = missing.get(lucky, set()) - lost
        if not missing[lucky]:
            del missing[lucky]
    assume(missing)
    return parts(topology, held, {id: sorted(blocks) for id, blocks in missing.items()}, disks, serving)


def plan_of(multicast: Multicast, *flows: TransferFlow) -> TransferPlan:
    """Return a plan of these flows to all targets of the multicast."""
    targets = tuple(target.node.id for target in multicast.targets)
    return TransferPlan(policy="fanout", flows=flows, targets=targets, tails=())


def chain_plan(topology: Topology, *nodes: str) -> tuple[Multicast, TransferPlan]:
    """Return a plan of one chain, from the first of these nodes to the last."""
    multicast = multicast_over(topology, BLOCKS, nodes[:1], nodes[1:])
    hops = (TransferFlow(sender, receiver, EVERY) for sender, receiver in pairwise(nodes))
    return multicast, plan_of(multicast, *hops)


def flows_by_link(multicast: Multicast, plan: TransferPlan) -> dict[tuple[float, int], list[TransferFlow]]:
    """Return the flows of each link, which is named by its rate and its number."""
    links = Links(plan.flows, multicast)
    users: dict[tuple[float, int], list[TransferFlow]] = {}
    for flow, used in zip(plan.flows, links.used_by, strict=True):
        for link in used:
            users.setdefault((links.capacity[link], link), []).append(flow)
    return users
