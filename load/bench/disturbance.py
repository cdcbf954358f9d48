"""What serving loses while its process is a source of parameters: in a chain, and naively to each target by itself."""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from load.bench.decoding import Decode, Source, block_sizes
from load.bench.fleet import Fleet, running
from load.bench.jobs import chain_jobs, jobs_of
from load.bench.nodes import Done, Job, Outfit, Share
from load.bench.record import Printer, Record, measured
from load.kept import kept_model
from load.sizes import Size
from shared.messages.transfers import Flow
from shared.settings import LinkSettings
from shared.transfer.chunks import chunk_bytes_for

BENCH = "transfer"
BAR = 0.93
TARGETS = 3
FIRST_TICKET = 1 << 20  # beyond those of chains


def disturbance(printer: Printer, settings: LinkSettings, passes: int, size: Size = "medium") -> Iterator[Record]:
    """Tokens/s of a source on a core of its own, undisturbed and while it feeds three targets, in turn; medians."""
    checkpoint = kept_model(size, printer.progress)
    sizes = block_sizes(checkpoint)
    seconds = sum(sizes) / settings.link_rate
    with decoding(checkpoint, sizes, settings) as fleet:
        done: dict[str, list[Done]] = {"undisturbed": [], "chain": [], "fan-out": []}
        for number in range(passes + 1):
            printer.progress(f"disturbance: pass {number} of {passes}" + (" (not counted)" if number == 0 else ""))
            chunk_bytes = chunk_bytes_for(settings.link_rate)
            done["undisturbed"].append(fleet.run({0: Decode(seconds)})[0])
            done["chain"].append(feed(fleet, chain_jobs(fleet, TARGETS, number, chunk_bytes)))
            done["fan-out"].append(feed(fleet, fan_out_jobs(fleet, number, chunk_bytes)))
    yield from told(done, "tokens/s", lambda one: one.tokens / (one.ended - one.began), BAR)
    # What this process itself lost, whatever else its core was busy with.
    yield from told(done, "tokens/CPU s", lambda one: one.tokens / one.cpu)
    # What sending may take from steps is bounded by a share of the time, of which this is most.
    for case, each in done.items():
        share = statistics.median(one.loop / (one.ended - one.began) for one in each[1:])
        yield measured(BENCH, f"event loop of the source, {case}", share, "CPU s/s")


def told(
    done: Mapping[str, Sequence[Done]], unit: str, rate: Callable[[Done], float], bar: float | None = None
) -> Iterator[Record]:
    medians = {case: statistics.median(map(rate, each[1:])) for case, each in done.items()}
    yield measured(BENCH, "decoding, undisturbed", medians["undisturbed"], unit)
    for case, at_least in (("chain", bar), ("fan-out", None)):
        name = f"decoding, feeding {TARGETS} by {case}"
        yield measured(BENCH, name, medians[case], unit, medians["undisturbed"], at_least=at_least)


def decoding(checkpoint: Path, sizes: Sequence[int], settings: LinkSettings) -> AbstractContextManager[Fleet]:
    """A source on the first core, and targets on the others."""
    first, *others = sorted(os.sched_getaffinity(0))
    target = Outfit(settings, list(sizes), is_source=False, has_spare=False, cores=tuple(others) or (first,))
    return running([Source(settings, str(checkpoint), first), *[target] * TARGETS])


def fan_out_jobs(fleet: Fleet, number: int, chunk_bytes: int) -> dict[int, Job]:
    ticket = FIRST_TICKET + number * TARGETS
    flows = [Flow(sender="0", receiver=str(i + 1), ticket=ticket + i) for i in range(TARGETS)]
    return jobs_of(fleet, flows, chunk_bytes)


def feed(fleet: Fleet, jobs: dict[int, Job]) -> Done:
    """What the source made while it sent."""
    share = jobs[0]
    assert isinstance(share, Share)
    return fleet.run({**jobs, 0: Decode(share=share)})[0]
