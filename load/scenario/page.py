"""The report of `livescale simulate`: one HTML file with figures, pictures, scales and faults."""

from html import escape
from pathlib import Path

from livescale.load.bench.systems.pictures import draw_runs
from livescale.load.report import render_list, render_page, render_picture, render_table, save_page
from livescale.load.scenario.result import FAULT_HEADINGS, HEADINGS, SCALE_HEADINGS, SimulationResult


def write_page(path: Path, result: SimulationResult) -> None:
    """Raises ClickException, which names the path."""
    save_page(path, render_simulation(result))


def render_simulation(result: SimulationResult) -> str:
    """Return the report of a simulation as one HTML page."""
    failed = len(result.run.faults)
    unfinished = result.models[-1].unfinished
    verdict = f"{failed} requests failed." if failed else "No request failed."
    if unfinished:
        verdict += f" {unfinished} had not ended."
    pictures = draw_runs({result.scenario: [result.run]}, "") if result.run.requests else []
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in result.facts())
    body = f"""<p>{escape(introduce(result))}</p>
<dl>{facts}</dl>
<h2>Requests</h2>
{render_table(HEADINGS, result.rows())}
<p class="note">TTFT counts from when a request was due. TBT is without the gap before the second token, which stands
apart.</p>
{render_list("Requests that were not answered as they should", result.run.faults)}
<div class="pictures">
{"".join(map(render_picture, pictures))}</div>
<h2>Scales</h2>
{render_table(SCALE_HEADINGS, [one.row() for one in result.scales])}
<h2>Faults</h2>
{render_table(FAULT_HEADINGS, [one.row() for one in result.faults])}"""
    return render_page(f"livescale: {result.scenario}, simulated", verdict, not failed and not unfinished, body)


def introduce(result: SimulationResult) -> str:
    return (
        f"A simulation of {result.ended_at:.0f} s: {result.workers} workers with modelled engines "
        f"({result.engine_profile}), links and disks ({result.topology}), and the real control plane, under virtual "
        "time."
    )
