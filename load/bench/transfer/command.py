"""`livescale bench transfer`: every measurement of how parameters travel.

Over one hop against memcpy, along chains against the link's rate, over shaped links, from disks; and how long plans
take.
"""

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import click

from livescale.load.bench.record import Record, RecordPrinter
from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.transfer.disk import disk
from livescale.load.bench.transfer.disturbance import disturbance
from livescale.load.bench.transfer.first_byte import first_byte
from livescale.load.bench.transfer.fleet import CarriedPlan
from livescale.load.bench.transfer.gloo import gloo
from livescale.load.bench.transfer.hop import hop
from livescale.load.bench.transfer.mapped import share
from livescale.load.bench.transfer.multicast import binomial, chains, lanes, policies
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
