"""What one hop costs between two processes: against memcpy, with checksums, and in CPU time of both ends."""

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.transfer.fleet import BenchFleet, chain_jobs, hop_jobs, seconds, started
from livescale.load.bench.transfer.node_messages import Check, Copy, Done
from livescale.shared.links.process_memory import why_refused
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.transfer.chunks import MAX_CHUNK_BYTES

BENCH = "transfer"
HOP_BAR = 0.55
SENDER_CPU = 0.02  # s/GB, at most
# The most CPU time of a receiver for its bytes, as a multiple of a copy, and of a checksum, in the same run. A copy is
# one within the process, and one by the kernel from the other process: this one alone may take more than the bar.
# Absolute figures in s/GB differ by machine: they are shown, without a bar.
RECEIVER_CPU = 1.15
WANTED_CPU = {"hop": 0.15, "hop, checksums": 0.25}


class HopPass(NamedTuple):
    """What the processes did, the sender 0 and the receiver 1; of the first block alone as well. `read` is empty where
    bytes do not go over CMA."""

    copy: dict[int, Done]
    read: dict[int, Done]
    check: dict[int, Done]
    bare: dict[int, Done]
    checked: dict[int, Done]
    first_bare: dict[int, Done]
    first_checked: dict[int, Done]


def hop(printer: RecordPrinter, settings: LinkSettings, sizes: Sequence[int], passes: int) -> Iterator[Record]:
    """Measure one hop in 16 MiB messages between two processes; every pass does all that is compared. At least two
    blocks are sent, as fewer would not show what their bytes cost."""
    sizes = sizes if len(sizes) > 1 else [*sizes] * 2
    gigabytes = sum(sizes) / 1e9
    has_bars = settings.transport == "ucx"  # sockets are there to work, not to be fast
    over_cma = has_bars and why_refused() is None
    with started(2, settings, sizes, has_spare=True) as fleet:
        rounds = []
        for number in range(passes + 1):
            printer.progress(f"hop: pass {number} of {passes}" + (" (not counted)" if number == 0 else ""))
            rounds.append(printer.samples.take(partial(hop_pass, fleet, over_cma), fleet.renew))
    counted = rounds[1:]
    memcpy = statistics.median(gigabytes / seconds(one.copy) for one in counted)
    yield measured(BENCH, "memcpy", memcpy, "GB/s")
    if all(one.read for one in counted):
        read = statistics.median(gigabytes / seconds(one.read) for one in counted)
        yield measured(BENCH, "kernel's copy", read, "GB/s", memcpy)
    for case, dones, bar in (
        ("hop", [one.bare for one in counted], HOP_BAR if has_bars else None),
        ("hop, checksums", [one.checked for one in counted], None),
    ):
        speed = statistics.median(gigabytes / seconds(done) for done in dones)
        yield measured(BENCH, case, speed, "GB/s", memcpy, at_least=bar)
        sender = statistics.median(done[0].cpu / gigabytes for done in dones)
        yield measured(
            BENCH, f"{case}, sender's CPU", sender, "CPU s/GB", SENDER_CPU if has_bars else None, at_most=1.0
        )
    yield from receiver_rows(printer, counted, sizes, has_bars=has_bars)


def receiver_rows(
    printer: RecordPrinter, passes: Sequence[HopPass], sizes: Sequence[int], *, has_bars: bool
) -> Iterator[Record]:
    """Compare the receiver's CPU time with the same work within one process, and by the kernel.

    The time by bytes is what all blocks take beyond the first one. The rest is what a hop takes to open channels; it
    matters less the larger a model is. The total is compared with the same work, and with a wanted figure.
    """
    gigabytes, more = sum(sizes) / 1e9, sum(sizes[1:]) / 1e9
    copied = statistics.median(cpu(one.copy) / gigabytes for one in passes)
    checked = statistics.median(cpu(one.check) / gigabytes for one in passes)
    copies = {"copy": copied}
    if all(one.read for one in passes):
        copies["kernel's copy"] = read = statistics.median(cpu(one.read) / gigabytes for one in passes)
        yield measured(BENCH, "kernel's copy, CPU / copy", read, "CPU s/GB", copied)
        if has_bars and read > RECEIVER_CPU * copied:
            times = f"the kernel's copy alone takes {read / copied:.2f} times the CPU of a copy"
            printer.progress(f"{times}: no hop over CMA keeps a bar of {RECEIVER_CPU}")
    verified = {f"{name} and checksum": least + checked for name, least in copies.items()}
    told = (
        ("hop", copies, [(cpu(one.bare), cpu(one.first_bare)) for one in passes]),
        ("hop, checksums", verified, [(cpu(one.checked), cpu(one.first_checked)) for one in passes]),
    )
    for case, least, cpus in told:
        per_byte = statistics.median((whole - first) / more for whole, first in cpus)
        in_all, wanted = statistics.median(whole / gigabytes for whole, _ in cpus), WANTED_CPU[case]
        most = RECEIVER_CPU if has_bars else None
        name = f"{case}, receiver's CPU"
        for within, seconds_per_gb in least.items():
            for what, value in (("by bytes", per_byte), ("in all", in_all)):
                row = f"{name} {what} / {within}"
                yield measured(BENCH, row, value, "CPU s/GB", seconds_per_gb, at_most=most)
        besides = statistics.median(whole - per_byte * gigabytes for whole, _ in cpus)
        yield measured(BENCH, f"{name} besides bytes", besides * 1e3, "ms")
        yield measured(BENCH, f"{name} in all", in_all, "CPU s/GB", wanted)
        if has_bars and in_all > wanted:
            printer.progress(f"{case}: the receiver takes {in_all / wanted - 1:.0%} more CPU than {wanted} s/GB")


def cpu(done: dict[int, Done]) -> float:
    """CPU seconds of the receiver, which is process 1."""
    return done[1].cpu


def hop_pass(fleet: BenchFleet, over_cma: bool) -> HopPass:
    """Within the receiver a copy, the kernel's copy, and checksums; then hops without checksums, and with them."""
    assert fleet.reads is not None
    return HopPass(
        copy=fleet.run({1: Copy()}),
        read=fleet.run({1: fleet.reads}) if over_cma else {},
        check=fleet.run({1: Check()}),
        bare=fleet.run(hop_jobs(fleet, len(fleet.blocks))),
        checked=fleet.run(chain_jobs(fleet, 1, MAX_CHUNK_BYTES)),
        first_bare=fleet.run(hop_jobs(fleet, 1)),
        first_checked=fleet.run(chain_jobs(fleet, 1, MAX_CHUNK_BYTES, count=1)),
    )
