"""Measures how long planning takes, and how that grows with the number of targets."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.services.planner.plans.make_plan import make_plan, predict
from livescale.services.planner.plans.plan import Multicast, Policy, ServingFlow, multicast_over
from livescale.shared.topology.topology import Domain, Gpu, Leaf, Topology, TopologyHost
from livescale.shared.transfer.chunks import MIB

BENCH = "transfer"
POLICIES: tuple[Policy, ...] = ("chains", "binomial", "tree", "fanout")
SIZES = (10, 100, 1_000, 4_000)
BAR_TARGETS, BAR_MS = 1_000, 50.0
BAR_EXPONENT = 1.2
GPUS, HOSTS_A_LEAF, SOURCES = 4, 16, 4
NIC, SCALE_UP, HOST_LINK, DISK, MEMORY = 12.5e9, 200e9, 16e9, 1.25e9, 10**12
LAYERS, LAYER_BYTES = 32, 500_000_000
PASSES = 7


def plan_time(printer: RecordPrinter) -> Iterator[Record]:
    """CPU time from topology, holders and serving traffic to a plan, and from a plan to its times.

    Hosts have four GPUs each, in a domain or each alone; serving sends from every tenth.
    """
    joined = {targets: cluster(targets, in_domains=True) for targets in SIZES}
    alone = {targets: cluster(targets, in_domains=False) for targets in SIZES}
    for policy in POLICIES:
        yield from growth(printer, f"plan, {policy}", plans(policy, joined), has_bars=True)
    yield from growth(printer, "plan, chains without domains", plans("chains", alone), has_bars=True)
    times = {targets: predict_later(multicast(topology, targets)) for targets, topology in joined.items()}
    yield from growth(printer, "predicted times, chains", times)


def plans(policy: Policy, clusters: Mapping[int, Topology]) -> dict[int, Callable[[], object]]:
    """What makes a plan from a topology, by number of targets."""
    return {targets: partial(plan_over, policy, topology, targets) for targets, topology in clusters.items()}


def growth(
    printer: RecordPrinter, case: str, works: Mapping[int, Callable[[], object]], *, has_bars: bool = False
) -> Iterator[Record]:
    """Medians by number of targets, and the exponent: 1 is linear."""
    printer.progress(case)
    milliseconds = {
        targets: 1000 * statistics.median(cpu_seconds(work) for _ in range(PASSES)) for targets, work in works.items()
    }
    for targets, value in milliseconds.items():
        bar = BAR_MS if has_bars and targets == BAR_TARGETS else None
        yield measured(BENCH, f"{case}, {targets} targets", value, "ms", bar, at_most=1.0 if bar else None)
    exponent = slope([(math.log(targets), math.log(value)) for targets, value in milliseconds.items()])
    yield measured(BENCH, f"{case}, exponent", exponent, "power", 1.0, at_most=BAR_EXPONENT if has_bars else None)


def cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def slope(points: list[tuple[float, float]]) -> float:
    """The slope of the line through these points with the least squares."""
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*points, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def plan_over(policy: Policy, topology: Topology, targets: int) -> object:
    return make_plan(policy, multicast(topology, targets))


def predict_later(ends: Multicast) -> Callable[[], object]:
    return partial(predict, ends, make_plan("chains", ends), 16 * MIB)


def multicast(topology: Topology, targets: int) -> Multicast:
    ids = [gpu.id for gpu in topology.gpus]
    serving = [ServingFlow(id, "out", NIC / 2) for id in ids[::10]]
    return multicast_over(
        topology, [LAYER_BYTES] * LAYERS, ids[:SOURCES], ids[SOURCES:], count=targets, serving=serving
    )


def cluster(targets: int, *, in_domains: bool) -> Topology:
    """A cluster with as many GPUs as are wanted, besides the sources' host."""
    hosts = [host(index, in_domains) for index in range(1 + -(-targets // GPUS))]
    domains = {gpu.domain: None for each in hosts for gpu in each.gpus}
    return Topology(
        name="bench",
        hosts=hosts,
        domains=[Domain(id=id, bandwidth=SCALE_UP if in_domains else 0.0) for id in domains],
        leaves=[Leaf(id=id) for id in dict.fromkeys(each.leaf for each in hosts)],
    )


def host(index: int, in_domains: bool) -> TopologyHost:
    id = f"h{index}"
    gpus = [
        Gpu(
            id=f"{id}/{gpu}",
            domain=id if in_domains else f"{id}/{gpu}",
            memory_bytes=MEMORY,
            nic_in=NIC,
            nic_out=NIC,
            host_link=HOST_LINK,
        )
        for gpu in range(GPUS)
    ]
    leaf = f"leaf{index // HOSTS_A_LEAF}"
    return TopologyHost(id=id, leaf=leaf, gpus=gpus, memory_bytes=MEMORY, nic_in=NIC, nic_out=NIC, disk=DISK)
