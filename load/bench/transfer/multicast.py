"""Carries out plans of every policy over shaped links between real processes, and compares their times."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.samples import Samples
from livescale.load.bench.transfer.fleet import BenchFleet, CarriedPlan, carry_out, started
from livescale.load.bench.transfer.shaping import emulated
from livescale.services.planner.plans.make_plan import make_plan, predict
from livescale.services.planner.plans.plan import Multicast, Policy, TransferPlan, multicast_over
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.topology.file import find_topology
from livescale.shared.topology.topology import Domain, Gpu, Leaf, Topology, TopologyHost
from livescale.shared.transfer.chunks import MIB, chunk_bytes_for

BENCH = "transfer"
CHAIN_BAR = GROWTH_BAR = 1.05
# A tree's first hop takes all bytes twice: passing chunks on as it does here, it is twice as slow at most.
RIVALS: dict[int, dict[Policy, float]] = {3: {"fanout": 2.7, "tree": 1.9}, 7: {"fanout": 6.0, "tree": 2.0}}
NODES, BLOCKS, SOURCES = 8, 16, (1, 2, 4)  # of the binomial pipeline
SCHEDULE_WITHIN = 0.10
LANES, LANES_BAR, SCALE_UP = 4, 3.5, 8  # the domain's links carry so many times a network card's rate
ROUNDS = 3  # medians count

Show = Callable[[str, CarriedPlan], object]  # by its name


def chains(
    printer: RecordPrinter, settings: LinkSettings, sizes: Sequence[int], receivers: Sequence[int], show: Show
) -> Iterator[Record]:
    """Checksums on: seconds from the first send until the last receiver has verified all, against bytes / rate."""
    printer.progress(f"chains: starting {max(receivers) + 1} processes, each touches {sum(sizes) // MIB} MiB")
    times = {}
    with started(max(receivers) + 1, settings, sizes) as fleet:
        for length in sorted(receivers):
            printer.progress(f"chain of {length}")
            run = repeat(printer.samples, fleet, "chains", settings.link_rate, length)
            show(f"chain of {length}", run)
            times[length] = run.seconds
            ideal = sum(sizes) / settings.link_rate
            yield measured(BENCH, f"chain of {length}", run.seconds, "s", ideal, at_most=CHAIN_BAR)
    shortest, *_, longest = sorted(times) if len(times) > 1 else (0, 0)
    if longest:
        case = f"chain of {longest}, against one of {shortest}"
        yield measured(BENCH, case, times[longest], "s", times[shortest], at_most=GROWTH_BAR)


def policies(printer: RecordPrinter, settings: LinkSettings, sizes: Sequence[int], show: Show) -> Iterator[Record]:
    """What fan-out and a tree take, against a chain over the same links."""
    with started(max(RIVALS) + 1, settings, sizes) as fleet:
        for length, bars in RIVALS.items():
            printer.progress(f"chain of {length}")
            chain = repeat(printer.samples, fleet, "chains", settings.link_rate, length)
            for rival, bar in bars.items():
                printer.progress(f"{rival} to {length}")
                run = repeat(printer.samples, fleet, rival, settings.link_rate, length, rounds=1)
                show(f"{rival} to {length}", run)
                yield measured(
                    BENCH, f"{rival} to {length}, against a chain", run.seconds, "s", chain.seconds, at_least=bar
                )


def binomial(printer: RecordPrinter, settings: LinkSettings, size_bytes: int, show: Show) -> Iterator[Record]:
    """Against what the schedule predicts; and when a pipeline is executable, against that with fewer sources."""
    sizes = [max(1, round(size_bytes / BLOCKS / MIB)) * MIB] * BLOCKS
    chunk_bytes, before = chunk_bytes_for(settings.link_rate), None
    for sources in SOURCES:
        printer.progress(f"binomial: {sources} of {NODES} processes have the model")
        names, multicast = flat(NODES, sources, settings.link_rate, sizes)
        plan = make_plan("binomial", multicast, sources=sources, blocks=BLOCKS)
        with started(NODES, settings, sizes, sources=sources) as fleet:
            run = carried(printer.samples, fleet, names, plan, chunk_bytes)
        case = f"binomial, k = {sources}"
        show(case, run)
        predicted = predict(multicast, plan, chunk_bytes).seconds
        yield measured(BENCH, case, run.seconds, "s", predicted, within=SCHEDULE_WITHIN)
        falls = None if before is None else 1.0
        yield measured(BENCH, f"{case}, first pipeline", run.executable, "s", before, at_most=falls)
        before = run.executable


def lanes(
    printer: RecordPrinter, settings: LinkSettings, sizes: Sequence[int], rate: float, show: Show
) -> Iterator[Record]:
    """One GPU of a domain sends to four of another, then each of four its share (BlitzScale 5.1, Fig. 14)."""
    printer.progress(f"lanes: two domains of {LANES}, each process touches {sum(sizes) // MIB} MiB")
    with two_domains(rate) as (topology, file):
        cluster = find_topology(str(topology))
        shaped = replace(settings, topology=str(topology), shaping_file=str(file))
        names = [gpu.id for gpu in cluster.gpus]
        runs = {}
        with started(2 * LANES, shaped, sizes, sources=LANES, places=names) as fleet:
            for count in (1, LANES):
                multicast = multicast_over(cluster, sizes, names[:count], names[LANES:])
                plan = make_plan("chains", multicast)
                case = f"{LANES} targets of a domain, {count} lane{'s' * (count > 1)}"
                printer.progress(case)
                runs[count] = carried(printer.samples, fleet, names, plan, chunk_bytes_for(rate))
                show(case, runs[count])
                yield measured(BENCH, case, runs[count].seconds, "s", sum(sizes) / rate / count)
    one, several = runs[1].seconds, runs[LANES].seconds
    yield measured(BENCH, f"one lane, against {LANES}", one, "s", several, at_least=LANES_BAR)


def repeat(
    samples: Samples, fleet: BenchFleet, policy: Policy, rate: float, targets: int, rounds: int = ROUNDS
) -> CarriedPlan:
    """Carry out a policy's plan several times, from the fleet's one source to so many of the others."""
    names, multicast = flat(len(fleet.nodes), 1, rate, [block.size_bytes for block in fleet.blocks], targets)
    plan = make_plan(policy, multicast)
    return carried(samples, fleet, names, plan, chunk_bytes_for(rate), rounds)


def carried(
    samples: Samples,
    fleet: BenchFleet,
    names: Sequence[str],
    plan: TransferPlan,
    chunk_bytes: int,
    rounds: int = ROUNDS,
) -> CarriedPlan:
    """Carry the plan out several times, and return the run with the median time."""
    once = partial(carry_out, fleet, names, plan, chunk_bytes)
    return middle([samples.take(once, fleet.renew) for _ in range(rounds)])


def middle(runs: Sequence[CarriedPlan]) -> CarriedPlan:
    """The run whose time is the median of all runs."""
    seconds = statistics.median_low(run.seconds for run in runs)
    return next(run for run in runs if run.seconds == seconds)


def flat(count: int, sources: int, rate: float, sizes: Sequence[int], targets: int = 0) -> tuple[list[str], Multicast]:
    """Hosts with a GPU and a network card each: their GPUs' names, and a multicast from the first to the next ones."""
    size = sum(sizes)
    hosts = [
        TopologyHost(
            id=str(number),
            leaf="leaf",
            gpus=[Gpu(id=f"{number}/0", domain=str(number), memory_bytes=size, host_link=rate)],
            memory_bytes=size,
            nic_in=rate,
            nic_out=rate,
            disk=rate,
        )
        for number in range(count)
    ]
    domains = [Domain(id=host.id, bandwidth=rate) for host in hosts]
    cluster = Topology(name="flat", hosts=hosts, domains=domains, leaves=[Leaf(id="leaf")])
    names = [gpu.id for gpu in cluster.gpus]
    takers = names[sources : sources + targets if targets else None]
    return names, multicast_over(cluster, sizes, names[:sources], takers)


def two_domains(rate: float) -> AbstractContextManager[tuple[Path, Path]]:
    """Two hosts, whose GPUs are a domain and have a network card each; see `emulated`."""
    card, scale_up = f"{rate:.0f} B/s", f"{SCALE_UP * rate:.0f} B/s"
    return emulated(2, rate, {"count": LANES, "nic": card, "host-link": card, "scale-up": scale_up})
