"""Writes the judged claims of the papers as one HTML page, with pictures and causes."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from livescale.load.claims.claim import Judgement, Verdict
from livescale.load.claims.table import HEADINGS, MODES, capital, cells, details, tell_counts
from livescale.load.claims.workbench import Mode
from livescale.load.report import render_page, render_picture, render_table, save_page


def write_page(path: Path, outcomes: Sequence[Judgement], mode: Mode) -> None:
    """Raises ClickException, which names the path."""
    save_page(path, render_claims(outcomes, mode))


def render_claims(outcomes: Sequence[Judgement], mode: Mode) -> str:
    """Return the claims as one HTML page, with pictures and causes."""
    failed = [outcome for outcome in outcomes if outcome.verdict is Verdict.FAILS]
    pictures = [one.measured.picture for one in outcomes if one.measured is not None and one.measured.picture]
    told = "".join(
        f"<dt>{escape(one.claim.source)}</dt><dd>{escape(f'{one.claim.says} {details(one)}')}</dd>" for one in outcomes
    )
    body = f"""<p>{escape(capital(MODES[mode]))}. Only --full decides.</p>
{render_table(HEADINGS, [cells(outcome) for outcome in outcomes])}
<div class="pictures">
{"".join(map(render_picture, pictures))}</div>
<h2>Settings, notes and reasons</h2>
<dl>{told}</dl>"""
    return render_page("livescale: what the papers claim", tell_counts(outcomes), not failed, body)
