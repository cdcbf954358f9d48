"""`livescale bench role-sources`: parameters from instances that decode or that prefill, under virtual time."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from statistics import median

import click
import msgspec

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.roles.sources_system import (
    FILLERS,
    MODEL,
    PATH,
    SERVING,
    VOCABULARY,
    WORKERS,
    PrefillSourcesCluster,
    sources_settings,
)
from livescale.load.bench.samples import BenchFailed
from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.simulate.client import replay
from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.start import made_up_asks, quiet, rare_collections, register, until, workers_in
from livescale.load.stats import percentile
from livescale.load.trace import Arrival, LoadPhase
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import AskSnapshot
from livescale.shared.messages.scaling import AskScales, Scale, ScaleRecord
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import SCALE, SCALES, SNAPSHOT

BENCH = "role-sources"
PROMPT, OUTPUT = 2_000, 30  # tokens, about as in Azure's code: a gap in 29 is one before a second token
RATE = 8.4  # requests a second: prompts take six tenths of the time of two instances, their KV a third of a link
SECONDS, FIRST, PAUSE, LOADS = 14.0, 3.0, 1.5, 3
LOAD_BAR, TBT_BAR = 0.75, 0.8
MOST_SECONDS = 3_600


class SourcesRun(msgspec.Struct, frozen=True):
    """Seconds of each load, who sent in it, and all gaps between tokens that overlap one of them."""

    loads: Sequence[float]
    senders: Sequence[str]
    gaps: Sequence[float]

    @property
    def tbt_p99(self) -> float:
        return percentile(self.gaps, 99) or 0.0


@click.command("role-sources")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Number of runs of each kind.")
def role_sources(seeds: int) -> None:
    """Compare loads from sources that are chosen by role with loads from instances that prefill.

    Two instances prefill and two decode, modelled under virtual time. A fifth one is loaded three times while they
    serve. Gaps between tokens count while it loads, those before second tokens included. Parameters yield to KV in
    both. It takes half a minute of processor time for each seed.
    """
    printer, by_role, others = RecordPrinter(BENCH), list[SourcesRun](), list[SourcesRun]()
    for seed in range(1, seeds + 1):
        for kind, runs in ((VirtualCluster, by_role), (PrefillSourcesCluster, others)):
            with quiet(), rare_collections():
                done = virtual_time.run(_play(kind, seed), limit_seconds=MOST_SECONDS)
            runs.append(done)
            loads = ", ".join(f"{seconds:.2f} s" for seconds in done.loads)
            printer.progress(f"seed {seed}, from {', '.join(done.senders)}: {loads}; p99 {done.tbt_p99 * 1e3:.1f} ms")
    for record in rows(by_role, others):
        printer.emit(record)
    sys.exit(0 if printer.finish() else 1)


def rows(by_role: Sequence[SourcesRun], others: Sequence[SourcesRun]) -> Iterator[Record]:
    """The medians of all loads, and of the runs' tails, and the bars."""
    load, other = (median(seconds for run in runs for seconds in run.loads) for runs in (by_role, others))
    yield measured(BENCH, "load time, sources by role / not", load, "s", other, at_most=LOAD_BAR)
    tail, other = (median(run.tbt_p99 for run in runs) * 1e3 for runs in (by_role, others))
    yield measured(BENCH, "TBT p99 meanwhile, sources by role / not", tail, "ms", other, at_most=TBT_BAR)


async def _play(kind: type[VirtualCluster], seed: int) -> SourcesRun:
    async with virtual_cluster(sources_settings(seed), kind) as made:
        await prepare(made)
        answers = asyncio.create_task(replay(made.gateway, MODEL, _asks(seed)))
        await asyncio.sleep(FIRST)
        scales = list[ScaleRecord]()
        for _ in range(LOADS):
            scales.append(await scale_out(made))
            await made.operator.call(SCALE, Scale(model=MODEL, instances=SERVING), timeout=5.0)
            await asyncio.sleep(PAUSE)
        return measure(scales, await answers)


def measure(scales: Sequence[ScaleRecord], records: Sequence[RequestRecord]) -> SourcesRun:
    """What was measured in these scales. Raises BenchFailed where one of them failed, or a request did."""
    faults = [fault for one in records if (fault := find_fault(one)) is not None]
    faults += [one.outcome for one in scales if one.state != "done"]
    if faults:
        raise BenchFailed(f"{len(faults)} requests or scales failed, the first: {faults[0]}")
    times = [{phase.name: phase.at for phase in one.phases} for one in scales]
    spans = [(at["commanded"], at["whole"]) for at in times]
    senders = {flow.sender for one in scales if one.plan is not None for flow in one.plan.flows}
    gaps = [
        after - before
        for one in records
        for before, after in pairwise(one.token_at)
        if any(before < end and after > begin for begin, end in spans)
    ]
    return SourcesRun([end - begin for begin, end in spans], sorted(senders), gaps)


def _asks(seed: int) -> list[Ask]:
    times = LoadPhase("all", SECONDS, RATE).times(Random(seed))
    return made_up_asks(tuple(Arrival(at, PROMPT, OUTPUT) for at in (0.0, *times)), VOCABULARY, seed)


async def prepare(made: VirtualCluster) -> None:
    """Wait until all serve and no host has the model; from then on nobody scales but the bench."""
    await register(made, ModelSpec(name=MODEL, path=PATH, min_instances=SERVING, max_instances=WORKERS))

    async def all_serve() -> bool:
        return len(await workers_in(made, "serving")) == SERVING

    async def hosts_are_full() -> bool:
        snapshot = await made.operator.call(SNAPSHOT, AskSnapshot(), timeout=5.0)
        return {one.model for host in snapshot.hosts for one in host.holdings if one.is_whole} == FILLERS.keys()

    await until(all_serve, 600, every=0.2)
    for name, path in FILLERS.items():
        await register(made, ModelSpec(name=name, path=path, min_instances=0, max_instances=1))
    await until(hosts_are_full, 600, every=0.5)
    await made.stop("monitor-0")


async def scale_out(made: VirtualCluster) -> ScaleRecord:
    """Add an instance. Returns the record of the scale once that has ended."""
    accepted = await made.operator.call(SCALE, Scale(model=MODEL, instances=WORKERS), timeout=5.0)
    while True:
        await asyncio.sleep(0.02)
        records = (await made.operator.call(SCALES, AskScales(model=MODEL), timeout=5.0)).records
        ended = [one for one in records if one.id == accepted.scale_id and one.state in ("done", "failed")]
        if ended:
            return ended[0]
