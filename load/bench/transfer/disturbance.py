"""Measures what serving loses while its process is a source of parameters: at the head of a chain, and if it sends to
each target by itself."""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.transfer.decoding_source import Decode, DecodingSource, block_sizes
from livescale.load.bench.transfer.fleet import BenchFleet, chain_jobs, jobs_of, running
from livescale.load.bench.transfer.node import Outfit
from livescale.load.bench.transfer.node_messages import Done, Job, Share
from livescale.load.kept import kept_model
from livescale.load.sizes import Size
from livescale.shared.messages.transfers import Flow
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.transfer.chunks import chunk_bytes_for

BENCH = "transfer"
BAR = 0.93
TARGETS = 3


def disturbance(printer: RecordPrinter, settings: LinkSettings, passes: int, size: Size = "medium") -> Iterator[Record]:
    """Tokens/s of a source on a core of its own, undisturbed and while it feeds three targets, in turn; medians."""
    checkpoint = kept_model(size, printer.progress)
    sizes = block_sizes(checkpoint)
    seconds = sum(sizes) / settings.link_rate
    with decoding(checkpoint, sizes, settings) as fleet:
        done: dict[str, list[Done]] = {"undisturbed": [], "chain": [], "fan-out": []}
        for number in range(passes + 1):
            printer.progress(f"disturbance: pass {number} of {passes}" + (" (not counted)" if number == 0 else ""))
            one_pass = partial(all_cases, fleet, seconds, chunk_bytes_for(settings.link_rate))
            for case, one in printer.samples.take(one_pass, fleet.renew).items():
                done[case].append(one)
    yield from told(done, "tokens/s", lambda one: one.tokens / (one.ended - one.began), BAR)
    # What this process itself lost, whatever else its core was busy with.
    yield from told(done, "tokens/CPU s", lambda one: one.tokens / one.cpu)
    # What sending may take from steps is bounded by a share of the time, of which this is most.
    for case, each in done.items():
        share = statistics.median(one.loop / (one.ended - one.began) for one in each[1:])
        yield measured(BENCH, f"event loop of the source, {case}", share, "CPU s/s")


def all_cases(fleet: BenchFleet, seconds: float, chunk_bytes: int) -> dict[str, Done]:
    return {
        "undisturbed": fleet.run({0: Decode(seconds)})[0],
        "chain": feed(fleet, chain_jobs(fleet, TARGETS, chunk_bytes)),
        "fan-out": feed(fleet, fan_out_jobs(fleet, chunk_bytes)),
    }


def told(
    done: Mapping[str, Sequence[Done]], unit: str, rate: Callable[[Done], float], bar: float | None = None
) -> Iterator[Record]:
    medians = {case: statistics.median(map(rate, each[1:])) for case, each in done.items()}
    yield measured(BENCH, "decoding, undisturbed", medians["undisturbed"], unit)
    for case, at_least in (("chain", bar), ("fan-out", None)):
        name = f"decoding, feeding {TARGETS} by {case}"
        yield measured(BENCH, name, medians[case], unit, medians["undisturbed"], at_least=at_least)


def decoding(checkpoint: Path, sizes: Sequence[int], settings: LinkSettings) -> AbstractContextManager[BenchFleet]:
    """A source on the first core, and targets on the others."""
    first, *others = sorted(os.sched_getaffinity(0))
    target = Outfit(settings, list(sizes), is_source=False, has_spare=False, cores=tuple(others) or (first,))
    return running([DecodingSource(settings, str(checkpoint), first), *[target] * TARGETS])


def fan_out_jobs(fleet: BenchFleet, chunk_bytes: int) -> dict[int, Job]:
    flows = [Flow(sender="0", receiver=str(i + 1), ticket=next(fleet.tickets)) for i in range(TARGETS)]
    return jobs_of(fleet, flows, chunk_bytes)


def feed(fleet: BenchFleet, jobs: dict[int, Job]) -> Done:
    """Run the jobs, and return what the source made while it sent."""
    share = jobs[0]
    assert isinstance(share, Share)
    return fleet.run({**jobs, 0: Decode(share=share)})[0]
