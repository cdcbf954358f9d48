"""`livescale bench transfer`: every measurement of how parameters travel.

Over one hop against memcpy, along chains against the link's rate, over shaped links, from disks; and how long plans
take.
"""

import itertools
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import click

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.transfer.disk import disk
from livescale.load.bench.transfer.disturbance import disturbance
from livescale.load.bench.transfer.first_byte import first_byte
from livescale.load.bench.transfer.fleet import BenchFleet, started
from livescale.load.bench.transfer.gloo import gloo
from livescale.load.bench.transfer.jobs import CarriedPlan, chain_jobs, hop_jobs, seconds
from livescale.load.bench.transfer.mapped import share
from livescale.load.bench.transfer.multicast import binomial, chains, lanes, policies
from livescale.load.bench.transfer.node_messages import Check, Copy, Done
from livescale.load.bench.transfer.picture import draw_transfers
from livescale.load.bench.transfer.plan_time import plan_time
from livescale.load.bench.transfer.shaping import shaping
from livescale.load.bench.transfer.starts import starts
from livescale.load.kept import logs_to
from livescale.load.machines import CannotEmulate, check_can_emulate
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.transfer.chunks import MAX_CHUNK_BYTES

BENCH = "transfer"
CASES = (
    *("hop", "first-byte", "share", "chains", "policies", "binomial", "lanes", "starts", "disturbance"),
    *("shaping", "disk", "plan-time"),
)
ROOTS_CASES = ("gloo",)  # only when asked for: they need root, and make network namespaces
HOP_BAR = 0.55
SENDER_CPU = 0.02  # s/GB, at most
# The most CPU time of a receiver for its bytes, as a multiple of a copy, and of a checksum, in the same run. Absolute
# figures in s/GB differ by machine: they are shown, without a bar.
RECEIVER_CPU = 1.15
WANTED_CPU = {"hop": 0.15, "hop, checksums": 0.25}


@click.command()
@click.option(
    "--transport",
    type=click.Choice(["ucx", "socket"]),
    default="ucx",
    show_default=True,
    help="Transport between processes: UCX, or plain TCP sockets.",
)
@click.option(
    "--megabytes",
    type=click.IntRange(1),
    default=400,
    show_default=True,
    help="Least size of the parameters sent, in MB.",
)
@click.option(
    "--rate", type=click.FloatRange(1), default=100.0, show_default=True, help="Rate of shaped links, in MB/s."
)
@click.option(
    "--receivers",
    type=click.IntRange(1, 64),
    multiple=True,
    default=(1, 2, 3, 7),
    show_default=True,
    help="Number of receivers of the chains; may be given several times.",
)
@click.option(
    "--passes",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Number of passes over one hop; their medians count.",
)
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="SVG file to draw the results into.")
@click.option(
    "--case",
    "cases",
    type=click.Choice(CASES + ROOTS_CASES),
    multiple=True,
    default=CASES,
    show_default="all but gloo, which needs root and makes network namespaces",
    help="Measurement to run; may be given several times.",
)
def transfer(
    transport: Literal["ucx", "socket"],
    megabytes: int,
    rate: float,
    receivers: Sequence[int],
    passes: int,
    cases: Sequence[str],
    svg: Path | None,
) -> None:
    """Measure how fast parameters travel.

    One hop is compared with memcpy, chains with bytes / rate, and other plans with chains and with their prediction.
    Further cases are several lanes, hot, warm and cold starts, flows that share a link, models read from disk, what a
    plan's first byte waits for, and the time that planning takes.
    """
    runs: dict[str, CarriedPlan] = {}
    printer = RecordPrinter(BENCH)
    sizes = [MAX_CHUNK_BYTES] * -(-megabytes * 1_000_000 // MAX_CHUNK_BYTES)
    plain = LinkSettings(transport=transport, share_memory="off")
    shaped = LinkSettings(transport=transport, link_rate=rate * 1e6)
    records = {
        "hop": hop(printer, plain, sizes, passes),
        "first-byte": first_byte(printer, plain, passes),
        "share": share(printer, plain, sizes, passes),
        "chains": chains(printer, shaped, sizes, receivers, runs.__setitem__),
        "policies": policies(printer, shaped, sizes, runs.__setitem__),
        "binomial": binomial(printer, shaped, sum(sizes), runs.__setitem__),
        "gloo": gloo(printer, plain, sizes, rate * 1e6, runs.__setitem__),
        "lanes": lanes(printer, plain, sizes, rate * 1e6, runs.__setitem__),
        "disturbance": disturbance(printer, shaped, passes),
        "starts": starts(printer, plain, sum(sizes), rate * 1e6, runs.__setitem__),
        "shaping": shaping(printer, plain, rate * 1e6, sum(sizes) / (rate * 1e6)),
        "disk": disk(printer, plain, megabytes * 1_000_000, passes),
        "plan-time": plan_time(printer),
    }
    try:
        if "gloo" in cases:
            check_can_emulate()
        with logs_to(sys.stderr):
            for record in itertools.chain.from_iterable(records[case] for case in cases):
                printer.emit(record)
    except BenchFailed as error:
        raise click.ClickException(str(error)) from None
    except CannotEmulate as error:
        raise click.ClickException(f"--case gloo: {error}") from None
    if svg is not None:
        write_picture(svg, printer.records, runs)
    if not printer.finish():
        sys.exit(1)


def write_picture(svg: Path, records: Sequence[Record], runs: Mapping[str, CarriedPlan]) -> None:
    try:
        svg.write_text(draw_transfers(records, runs), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"--svg {svg}: {error.strerror}") from None


class HopPass(NamedTuple):
    """What the processes did, the sender 0 and the receiver 1; of the first block alone as well."""

    copy: dict[int, Done]
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
    with started(2, settings, sizes, has_spare=True) as fleet:
        rounds = []
        for number in range(passes + 1):
            printer.progress(f"hop: pass {number} of {passes}" + (" (not counted)" if number == 0 else ""))
            rounds.append(printer.samples.take(partial(hop_pass, fleet), fleet.renew))
    counted = rounds[1:]
    memcpy = statistics.median(gigabytes / seconds(one.copy) for one in counted)
    yield measured(BENCH, "memcpy", memcpy, "GB/s")
    has_bars = settings.transport == "ucx"  # sockets are there to work, not to be fast
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
    """Compare the receiver's CPU time with the same work within one process.

    The time by bytes is what all blocks take beyond the first one. The rest is what a hop takes to open channels; it
    matters less the larger a model is. The total is compared with the same work, and with a wanted figure.
    """
    gigabytes, more = sum(sizes) / 1e9, sum(sizes[1:]) / 1e9
    copied = statistics.median(cpu(one.copy) / gigabytes for one in passes)
    verified = statistics.median((cpu(one.copy) + cpu(one.check)) / gigabytes for one in passes)
    told = (
        ("hop", "copy", copied, [(cpu(one.bare), cpu(one.first_bare)) for one in passes]),
        (
            "hop, checksums",
            "copy and checksum",
            verified,
            [(cpu(one.checked), cpu(one.first_checked)) for one in passes],
        ),
    )
    for case, within, least, cpus in told:
        per_byte = statistics.median((whole - first) / more for whole, first in cpus)
        most = RECEIVER_CPU if has_bars else None
        name = f"{case}, receiver's CPU"
        yield measured(BENCH, f"{name} by bytes / {within}", per_byte, "CPU s/GB", least, at_most=most)
        besides = statistics.median(whole - per_byte * gigabytes for whole, _ in cpus)
        yield measured(BENCH, f"{name} besides bytes", besides * 1e3, "ms")
        in_all, wanted = statistics.median(whole / gigabytes for whole, _ in cpus), WANTED_CPU[case]
        yield measured(BENCH, f"{name} in all / {within}", in_all, "CPU s/GB", least, at_most=most)
        yield measured(BENCH, f"{name} in all", in_all, "CPU s/GB", wanted)
        if has_bars and in_all > wanted:
            printer.progress(f"{case}: the receiver takes {in_all / wanted - 1:.0%} more CPU than {wanted} s/GB")


def cpu(done: dict[int, Done]) -> float:
    """CPU seconds of the receiver, which is process 1."""
    return done[1].cpu


def hop_pass(fleet: BenchFleet) -> HopPass:
    """Within the receiver a copy and checksums; then hops without these, and with them."""
    return HopPass(
        copy=fleet.run({1: Copy()}),
        check=fleet.run({1: Check()}),
        bare=fleet.run(hop_jobs(fleet, len(fleet.blocks))),
        checked=fleet.run(chain_jobs(fleet, 1, MAX_CHUNK_BYTES)),
        first_bare=fleet.run(hop_jobs(fleet, 1)),
        first_checked=fleet.run(chain_jobs(fleet, 1, MAX_CHUNK_BYTES, count=1)),
    )
