"""Compares chains with gloo's broadcast over links that the kernel shapes: each process has a network namespace, as a
machine would."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

from msgspec.structs import replace

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.transfer.fleet import BenchFleet, CarriedPlan, running, seconds
from livescale.load.bench.transfer.multicast import ROUNDS, Show, middle, repeat
from livescale.load.bench.transfer.node import Outfit
from livescale.load.bench.transfer.node_messages import Broadcast, GlooRank
from livescale.load.machines import CARD, Network, network
from livescale.shared.runtime.settings import LinkSettings

BENCH = "transfer"
BARS = {3: 1.8, 7: 3.0}  # by the number of receivers
PORT = 29500  # no other program runs on these machines


def gloo(
    printer: RecordPrinter, settings: LinkSettings, sizes: Sequence[int], rate: float, show: Show
) -> Iterator[Record]:
    """Interleaved; medians count. Checksums are part of the chain's time, not of gloo's. Raises CannotEmulate."""
    for receivers, bar in BARS.items():
        printer.progress(f"gloo: {receivers + 1} machines, on each two processes that touch {sum(sizes) // 10**6} MB")
        names = [f"m{number}" for number in range(receivers + 1)]
        with (
            network(names, f"{rate * 8:.0f}bit") as machines,
            chained(machines, settings, sizes) as ours,
            grouped(machines, sizes) as theirs,
        ):
            chains, broadcasts = take_turns(printer, ours, theirs, rate)
        run = middle(chains)
        show(f"chain of {receivers}, shaped by the kernel", run)
        yield measured(BENCH, f"chain of {receivers}, shaped by the kernel", run.seconds, "s", sum(sizes) / rate)
        took = statistics.median(broadcasts)
        case = f"gloo broadcast to {receivers}, against a chain"
        yield measured(BENCH, case, took, "s", run.seconds, at_least=bar)


def take_turns(
    printer: RecordPrinter, ours: BenchFleet, theirs: BenchFleet, rate: float
) -> tuple[list[CarriedPlan], list[float]]:
    chains, broadcasts, receivers = [], [], len(theirs.nodes) - 1
    for number in range(1, ROUNDS + 1):
        printer.progress(f"gloo: {receivers} receivers, round {number} of {ROUNDS}")
        chains.append(repeat(printer.samples, ours, "chains", rate, receivers, rounds=1))
        # The source begins last, and so the clock.
        jobs = {rank: Broadcast(theirs.blocks) for rank in range(receivers, -1, -1)}
        broadcasts.append(seconds(printer.samples.take(partial(theirs.run, jobs), theirs.renew)))
    return chains, broadcasts


def chained(machines: Network, settings: LinkSettings, sizes: Sequence[int]) -> AbstractContextManager[BenchFleet]:
    """A process on each machine that takes part in plans; the first is the source."""
    outfits = [
        Outfit(replace(settings, bind=machines.address(name)), list(sizes), is_source=index == 0, has_spare=False)
        for index, name in enumerate(machines.names)
    ]
    # Without this UCX would copy from process to process, past the network.
    return running(outfits, [machines.inside(name, "env", "UCX_TLS=tcp") for name in machines.names])


def grouped(machines: Network, sizes: Sequence[int]) -> AbstractContextManager[BenchFleet]:
    """A process on each machine that takes part in broadcasts; the first is the source."""
    leader, count = f"{machines.address(machines.names[0])}:{PORT}", len(machines.names)
    members = [GlooRank(rank, count, leader, list(sizes)) for rank in range(count)]
    # Names of addresses are not to be found out here, which is no news.
    env = (f"GLOO_SOCKET_IFNAME={CARD}", "TORCH_CPP_LOG_LEVEL=ERROR")
    return running(members, [machines.inside(name, "env", *env) for name in machines.names])
