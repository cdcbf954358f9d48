"""`livescale bench systems`: systems to compare with on the same arrivals, under virtual time."""

import sys
from pathlib import Path

import click
import msgspec

from livescale.load.bench.record import RecordPrinter
from livescale.load.bench.systems.make_scenarios import make_scenarios
from livescale.load.bench.systems.page import write_page
from livescale.load.bench.systems.rows import BENCH, Results, by_system, find_slo, rows_of, summarise
from livescale.load.bench.systems.runs import KeptRuns, run_all
from livescale.load.bench.systems.settings import SystemsBenchSettings
from livescale.load.report import check_report_path
from livescale.services.cli.options import settings_options
from livescale.shared.runtime.files import write_atomically

# The settings that the results repeat as they are.
TOLD = ("window", "workers", "topology", "engine_profile", "parameters_gb", "seeds")


@click.command()
@settings_options(SystemsBenchSettings)
def systems(settings: SystemsBenchSettings) -> None:
    """Compare systems on the same arrivals of a trace, under virtual time.

    Router, registry, planner, monitor, hosts and workers are the real ones. Engines, links and disks are modelled: they
    take the time of the GPUs and the cluster that are named. So 8 to 32 workers run on one CPU core, and every seed
    gives the same figures again.

    \b
    livescale bench systems --trace azure_code_2023.csv --window 845+60
    livescale bench systems --trace T.csv --systems serverlessllm,+zigzag,distserve-full --seeds 5 --workers 16

    A run takes about a second of CPU for each second of the window. It is kept in --runs as soon as it ends, so a
    comparison that was interrupted goes on where it was.

    SLOs are five times the means of distserve-full, or of vllm-full. The exit status is 1 if a bar was missed.
    """
    check_report_path(Path(settings.report))
    try:
        rate_scale, scenarios = make_scenarios(settings)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    printer = RecordPrinter(BENCH)
    arrivals = len(scenarios[0].arrivals)
    printer.progress(
        f"{len(scenarios)} runs of {arrivals} requests in {scenarios[0].seconds:g} s, rate x{rate_scale:.2f}"
    )
    runs = run_all(scenarios, KeptRuns(Path(settings.runs)), settings.jobs, printer.progress)
    named = by_system(runs)
    reference, slo = find_slo(named)
    summaries = [summarise(of, slo) for of in named.values()]
    for record in rows_of(summaries):
        printer.emit(record)
    kept = printer.finish()
    scenario = {name: getattr(settings, name) for name in TOLD}
    results = Results(
        trace=Path(settings.trace or "").name,
        rate_scale=rate_scale,
        reference=reference,
        slo=slo,
        systems=summaries,
        records=printer.records,
        runs=runs,
        **scenario,
    )
    save(Path(settings.output), results)
    write_page(Path(settings.report), results, printer.conditions())
    printer.progress(f"Report: {settings.report}; results: {settings.output}")
    sys.exit(0 if kept else 1)


def save(path: Path, results: Results) -> None:
    """Raises ClickException, which names the path."""
    try:
        write_atomically(path, msgspec.json.encode(results))
    except OSError as error:
        raise click.ClickException(f"--output {path} cannot be written: {error.strerror}") from None
