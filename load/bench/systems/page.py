"""The report of `livescale bench systems`: one HTML file with the papers' figures for these arrivals."""

from html import escape
from pathlib import Path

from livescale.load.bench.page import render_bench
from livescale.load.bench.record import Conditions
from livescale.load.bench.systems.pictures import draw_pictures
from livescale.load.bench.systems.rows import HEADINGS, Results, by_system
from livescale.load.report import render_list, render_table, save_page


def write_page(path: Path, results: Results, conditions: Conditions) -> None:
    """Raises ClickException, which names the path."""
    save_page(path, render_systems(results, conditions))


def render_systems(results: Results, conditions: Conditions) -> str:
    """Return the report of the comparison as one HTML page."""
    runs = by_system(results.runs)
    faults = [f"{run.system}, seed {run.seed}: {fault}" for run in results.runs for fault in run.faults]
    table = f"""<h2>Systems</h2>
{render_table(HEADINGS, [one.row() for one in results.systems])}
<p class="note">Medians of {results.seeds} seeds. {escape(tell_slo(results))} TBT is without the gap before the second
token, which stands apart.</p>
{render_list("Requests that were not answered as they should", faults)}"""
    pictures = draw_pictures(runs, results.systems)
    intro = escape(introduce(results))
    return render_bench("livescale: systems on one trace", intro, pictures, results.records, conditions, table)


def introduce(results: Results) -> str:
    first = results.runs[0]
    return (
        f"{results.trace}, window {results.window}, {results.rate_scale:.2f} times its rate: {len(first.requests)} "
        f"requests count, those of the first {first.warm_up:g} s do not. A simulation: {results.workers} workers with "
        f"modelled engines ({results.engine_profile}, {results.parameters_gb:g} GB), links and disks "
        f"({results.topology}), and the real control plane, under virtual time."
    )


def tell_slo(results: Results) -> str:
    if results.slo is None:
        return "No SLO, as neither distserve-full nor vllm-full was run."
    ttft, tbt = results.slo.ttft * 1e3, results.slo.tbt * 1e3
    return f"The SLOs are five times the means of {results.reference}: TTFT {ttft:.0f} ms, TBT {tbt:.0f} ms."
