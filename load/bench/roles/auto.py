"""`livescale bench auto-roles`: roles that the router gives, against fixed ones and none, under virtual time."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import click

from livescale.load.bench.record import Record, RecordPrinter, measured
from livescale.load.bench.roles.modelled import Attained, attained, run
from livescale.load.bench.roles.modelled_system import INSTANCES, VOCABULARY, RolesSystem
from livescale.load.records import RequestRecord
from livescale.load.simulate.start import made_up_asks, quiet
from livescale.load.trace import TraceError, parse_window, replay
from livescale.load.trace_files import read_trace

BENCH = "auto-roles"
RATE_SCALE = 5.0
TBT_RATIOS = (1.1, 1.25, 1.5, 1.85, 3.0, 1_000.0)  # the last one is none
PREFILL = range(4, INSTANCES)  # fewer cannot keep up with the prompts
TIGHT, LOOSE = 0.022, 0.150  # seconds; the first is 1.9 steps with one decode
OF_COLOCATED, OF_SPLIT, OF_LOOSE = 1.25, 0.95, 0.98

COLOCATED = [RolesSystem(name=f"colocated, --tbt-ratio {ratio:g}", tbt_ratio=ratio) for ratio in TBT_RATIOS]
SPLIT = [
    RolesSystem(name=f"{prefill} prefill, {INSTANCES - prefill} decode", disaggregation="on", prefill=prefill)
    for prefill in PREFILL
]
AUTO_TIGHT = RolesSystem(name="auto", disaggregation="auto", tbt_slo=TIGHT)
AUTO_LOOSE = RolesSystem(name="auto, loose", disaggregation="auto", tbt_slo=LOOSE)

Runs = Mapping[str, Sequence[Sequence[RequestRecord]]]  # by system: the records of each seed


@click.command("auto-roles")
@click.option(
    "--trace",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="Trace to replay, as `livescale load --trace` reads it; the bars are those of Azure's conversations of 2023.",
)
@click.option("--window", default="1580+60", show_default=True, help="Part of the trace, START+SECONDS or START:END.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Number of runs of each system.")
@click.option(
    "--after",
    type=click.FloatRange(0),
    default=20.0,
    show_default=True,
    help="First seconds of the load, in which auto measures it; they count for no system.",
)
def auto_roles(file: Path, window: str, seeds: int, after: float) -> None:
    """Compare roles that the router gives with the best fixed ones, and with none.

    Eight instances, modelled under virtual time, have five times the rate of the trace. A request is in time if its
    first token takes at most 450 ms, with 0.08 ms more for each token of the prompt, and the others come every 22 ms on
    average. In the second part every 150 ms is enough. Each system and seed takes some minutes of processor time.
    """
    try:
        trace, part = read_trace(file), parse_window(window)
    except (TraceError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    printer, runs = RecordPrinter(BENCH), dict[str, list[list[RequestRecord]]]()
    for seed in range(1, seeds + 1):
        asks = made_up_asks(replay(trace, part, RATE_SCALE, 1.0, seed), VOCABULARY, seed)
        for system in (AUTO_TIGHT, AUTO_LOOSE, *SPLIT, *COLOCATED):
            with quiet():
                records = run(system, asks, seed)
            runs.setdefault(system.name, []).append(records)
            printer.progress(f"seed {seed}, {system.name}: {told(records, system.tbt_slo, after)}")
    for record in rows(runs, after):
        printer.emit(record)
    sys.exit(0 if printer.finish() else 1)


def told(records: Sequence[RequestRecord], tbt_slo: float, after: float) -> str:
    """Say which share of one run's requests was in time, after the start-up and in all."""
    found, all_of_it = attained(records, tbt_slo, after), attained(records, tbt_slo)
    return (
        f"{found.both:.3f} of {found.requests} in time (first token {found.ttft:.3f}, others {found.tbt:.3f}); "
        f"{all_of_it.both:.3f} of all {all_of_it.requests}"
    )


def rows(runs: Runs, after: float) -> Iterator[Record]:
    """What each system attains, the medians of all seeds, and the bars."""

    def share(system: RolesSystem, tbt_slo: float) -> float:
        found: list[Attained] = [attained(records, tbt_slo, after) for records in runs[system.name]]
        return median(one.both for one in found)

    def best(systems: Sequence[RolesSystem], tbt_slo: float) -> float:
        return max(share(system, tbt_slo) for system in systems)

    for system in (*COLOCATED, *SPLIT):
        yield measured(BENCH, f"{system.name}, in time at {TIGHT * 1e3:.0f} ms", share(system, TIGHT), "of requests")
        yield measured(BENCH, f"{system.name}, at {LOOSE * 1e3:.0f} ms", share(system, LOOSE), "of requests")
    auto, loose = share(AUTO_TIGHT, TIGHT), share(AUTO_LOOSE, LOOSE)
    unit, either = "of requests", (*COLOCATED, *SPLIT)
    yield measured(BENCH, "auto / best colocated", auto, unit, best(COLOCATED, TIGHT), at_least=OF_COLOCATED)
    yield measured(BENCH, "auto / best split", auto, unit, best(SPLIT, TIGHT), at_least=OF_SPLIT)
    yield measured(BENCH, "auto / best of all, 150 ms", loose, unit, best(either, LOOSE), at_least=OF_LOOSE)
