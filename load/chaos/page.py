"""The report of a run with faults: one HTML file with everything in it."""

from pathlib import Path

from livescale.load.chaos.pictures import draw_pictures
from livescale.load.chaos.report import FAULT_HEADINGS, ChaosReport, fault_rows
from livescale.load.chaos.run import Run
from livescale.load.report import (
    render_list,
    render_newcomer_table,
    render_page,
    render_picture,
    render_settings,
    render_table,
    save_page,
)


def write_page(path: Path, report: ChaosReport, run: Run, settings: dict[str, str]) -> None:
    """Raises ClickException, which names the path."""
    save_page(path, render_report(report, run, settings))


def render_report(report: ChaosReport, run: Run, settings: dict[str, str]) -> str:
    """The whole page."""
    body = f"""{render_list("Amiss", report.complaints())}
<p>{len(run.asks)} requests went through {settings["gateways"]} gateways while processes of the system were killed and
frozen; routers took office {report.takeovers} times in another's place; {report.scaled_out} scales out and
{report.scaled_in} in were done; {report.handed_over} requests were taken over from instances that were still loading.
The longest time to a first token was {report.longest_first:.2f} s.</p>
<p class="note">Right: every token is the one that an undisturbed engine has at its place. Whole: in the end every
process is there, nothing waits, runs or is held, every gateway serves, and nothing is left when the system ends.</p>
<h2>Over time</h2>
<div class="pictures">
{"".join(render_picture(picture) for picture in draw_pictures(run))}</div>
<h2>New instances</h2>
{render_newcomer_table(run.story.newcomers(run.start), run.records)}
<h2>Faults</h2>
{render_table(FAULT_HEADINGS, list(fault_rows(run.happenings, run.seen, run.start, run.end)))}
<p class="note">The pause is the longest of any stream until the next fault.</p>
<h2>Settings</h2>
{render_settings(settings)}"""
    return render_page("livescale: processes died, streams went on", report.sentence(), report.good, body)
