"""Compares workers that map a model from their host's memory with workers that receive it over links."""

import statistics
from collections.abc import Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.transfer.fleet import BenchFleet, chain_jobs, seconds, started
from livescale.load.bench.transfer.node_messages import Done, Share
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.transfer.chunks import MAX_CHUNK_BYTES

BENCH = "transfer"
RECEIVERS = (1, 3)


def share(printer: RecordPrinter, settings: LinkSettings, sizes: Sequence[int], passes: int) -> Iterator[Record]:
    """Seconds until the last of a chain has the set, checksums included: sent, and shared, in turn."""
    count, gigabytes = max(RECEIVERS) + 1, sum(sizes) / 1e9
    shared = replace(settings, share_memory="auto")
    with started(count, settings, sizes) as sending, started(count, shared, sizes) as sharing:

        def renew() -> None:
            sending.renew()
            sharing.renew()

        for receivers in RECEIVERS:
            rounds = []
            for number in range(passes + 1):
                printer.progress(f"share, {receivers} receivers: pass {number} of {passes}")
                rounds.append(printer.samples.take(partial(both_ways, sending, sharing, receivers), renew))
            sent, mapped = zip(*rounds[1:], strict=True)
            case = f"share, {receivers} receiver" + "s" * (receivers > 1)
            times = [statistics.median(map(seconds, dones)) for dones in (mapped, sent)]
            yield measured(BENCH, case, times[0], "s", times[1], at_most=None)
            cpus = [statistics.median(cpu(done) / gigabytes for done in dones) for dones in (mapped, sent)]
            yield measured(BENCH, f"{case}, CPU of all", cpus[0], "CPU s/GB", cpus[1])


def both_ways(sending: BenchFleet, sharing: BenchFleet, receivers: int) -> tuple[dict[int, Done], dict[int, Done]]:
    return chain(sending, receivers), chain(sharing, receivers, maps=True)


def chain(fleet: BenchFleet, receivers: int, maps: bool = False) -> dict[int, Done]:
    jobs = chain_jobs(fleet, receivers, MAX_CHUNK_BYTES)
    return fleet.run(
        {
            index: replace(job, maps=maps) if isinstance(job, Share) and job.inflows else job
            for index, job in jobs.items()
        }
    )


def cpu(done: dict[int, Done]) -> float:
    return sum(one.cpu for one in done.values())
