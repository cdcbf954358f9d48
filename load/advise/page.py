"""How advice is shown: a table on the console, and an HTML file with all that was tried and pictures of what breaks."""

from html import escape
from pathlib import Path

from livescale.load.advise.advice import Advice
from livescale.load.advise.judge import HEADINGS
from livescale.load.bench.systems.pictures import draw_runs
from livescale.load.report import render_page, render_picture, render_table, save_page
from livescale.load.stats import new_table
from livescale.services.cli.tables import open_console


def write_page(path: Path, advice: Advice) -> None:
    """Raises ClickException, which names the path."""
    save_page(path, render_advice(advice))


def render_advice(advice: Advice) -> str:
    """Return the report of an advice as one HTML page."""
    slos = advice.slos
    told = f"SLOs: TTFT {slos.ttft:g} s, mean TBT {slos.tbt:g} s, for {100 * slos.share:g} % of all requests."
    shown = {"advised": advice.best, **advice.less}
    runs = {name: [each.result.run] for name, each in shown.items() if each is not None and each.result.run.requests}
    pictures = draw_runs(runs, "") if runs else []
    body = f"""<p>{escape(told)} All figures are of simulations: engines, links and disks are modelled.</p>
<h2>What was tried</h2>
{render_table(("", *HEADINGS), advice.rows())}
<div class="pictures">
{"".join(map(render_picture, pictures))}</div>"""
    return render_page("livescale: the smallest pool", advice.sentence(), advice.best is not None, body)


def print_advice(advice: Advice) -> None:
    console = open_console()
    table = new_table(advice.sentence())
    for number, heading in enumerate(("", *HEADINGS)):
        table.add_column(heading, justify="left" if number in (0, len(HEADINGS)) else "right", no_wrap=True)
    for row in advice.rows():
        table.add_row(*row)
    console.print(table)
