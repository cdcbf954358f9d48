"""`livescale bench transfer`: parameters over one hop against memcpy, along chains against the link's rate; whether
shaped links carry what they should; models from a disk; and how long plans take."""

import itertools
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import click

from load.bench.carry import Carried
from load.bench.disk import disk
from load.bench.disturbance import disturbance
from load.bench.fleet import BenchFailed, started
from load.bench.gloo import gloo
from load.bench.jobs import chain_jobs, seconds
from load.bench.multicast import binomial, chains, lanes, policies
from load.bench.nodes import Copy, Hop
from load.bench.picture import draw_transfers
from load.bench.plan_time import plan_time
from load.bench.record import Printer, Record, measured
from load.bench.shaping import shaping
from load.bench.share import share
from load.bench.starts import starts
from load.kept import logs_to
from load.machines import CannotEmulate, check_can_emulate
from shared.settings import LinkSettings
from shared.transfer.chunks import MAX_CHUNK_BYTES

BENCH = "transfer"
CASES = (
    *("hop", "share", "chains", "policies", "binomial", "lanes", "starts", "disturbance"),
    *("shaping", "disk", "plan-time"),
)
ROOTS_CASES = ("gloo",)  # only when asked for: they need root, and make network namespaces
HOP_BAR = 0.55
MOST_CPU = {"hop": (0.02, 0.15), "hop, checksums": (0.02, 0.25)}  # of sender and receiver, s/GB


@click.command()
@click.option("--transport", type=click.Choice(["ucx", "socket"]), default="ucx", show_default=True)
@click.option("--megabytes", type=click.IntRange(1), default=400, show_default=True, help="Size of the set, at least.")
@click.option("--rate", type=click.FloatRange(1), default=100.0, show_default=True, help="Of shaped links, in MB/s.")
@click.option("--receivers", type=click.IntRange(1, 64), multiple=True, default=(1, 2, 3, 7), show_default=True)
@click.option("--passes", type=click.IntRange(1), default=5, show_default=True, help="Of the hop; medians count.")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw what was measured into this file.")
@click.option(
    "--case",
    "cases",
    type=click.Choice(CASES + ROOTS_CASES),
    multiple=True,
    default=CASES,
    show_default="all but gloo, which needs root and makes network namespaces",
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
    """Parameters over one hop (against memcpy), along chains (against bytes / rate), by other plans (against chains and
    what was predicted), in lanes; hot, warm and cold starts; flows that meet; models from a disk; plan times."""
    runs: dict[str, Carried] = {}
    printer = Printer(BENCH)
    sizes = [MAX_CHUNK_BYTES] * -(-megabytes * 1_000_000 // MAX_CHUNK_BYTES)
    plain = LinkSettings(transport=transport, share_memory="off")
    shaped = LinkSettings(transport=transport, link_rate=rate * 1e6)
    records = {
        "hop": hop(printer, plain, sizes, passes),
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


def write_picture(svg: Path, records: Sequence[Record], runs: Mapping[str, Carried]) -> None:
    try:
        svg.write_text(draw_transfers(records, runs), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"--svg {svg}: {error.strerror}") from None


def hop(printer: Printer, settings: LinkSettings, sizes: Sequence[int], passes: int) -> Iterator[Record]:
    """One hop in 16 MiB messages between two processes; every pass copies, moves, and moves with checksums."""
    gigabytes = sum(sizes) / 1e9
    with started(2, settings, sizes, has_spare=True) as fleet:
        rounds = []
        for number in range(passes + 1):
            printer.progress(f"hop: pass {number} of {passes}" + (" (not counted)" if number == 0 else ""))
            copy = fleet.run({1: Copy()})
            bare = fleet.run({1: Hop(fleet.nodes[0], takes=fleet.blocks), 0: Hop(fleet.nodes[1])})
            checked = fleet.run(chain_jobs(fleet, 1, number, MAX_CHUNK_BYTES))
            rounds.append((copy, bare, checked))
    copies, bares, checkeds = zip(*rounds[1:], strict=True)
    memcpy = statistics.median(gigabytes / seconds(done) for done in copies)
    yield measured(BENCH, "memcpy", memcpy, "GB/s")
    has_bars = settings.transport == "ucx"  # sockets are there to work, not to be fast
    for case, dones, bar in (("hop", bares, HOP_BAR if has_bars else None), ("hop, checksums", checkeds, None)):
        speed = statistics.median(gigabytes / seconds(done) for done in dones)
        yield measured(BENCH, case, speed, "GB/s", memcpy, at_least=bar)
        for process, role in enumerate(("sender", "receiver")):
            cpu = statistics.median(done[process].cpu / gigabytes for done in dones)
            most = MOST_CPU[case][process] if has_bars else None
            yield measured(BENCH, f"{case}, {role}'s CPU", cpu, "CPU s/GB", most, at_most=1.0)
