"""The report of a load: one HTML file with everything in it, readable without a network and on a phone."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import click

from livescale.load.arrival_picture import draw_arrival
from livescale.load.newcomers import HEADINGS, NOTES, newcomer_row, tell_first_tokens, tell_slower
from livescale.load.outcome import Outcome
from livescale.load.pictures import SvgPicture, draw_pictures
from livescale.load.records import RequestRecord
from livescale.load.stats import Summary, duration
from livescale.load.story import Newcomer

CSS = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --good: #0a7d4f; --bad: #c62828; }
@media (prefers-color-scheme: dark) { :root { --good: #4ade80; --bad: #f87171; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem; padding: 1.25rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.verdict { border-left: .35rem solid; padding: .6rem 1rem; margin: 1rem 0; background: var(--soft); font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .35rem .6rem; text-align: right; vertical-align: bottom; border-bottom: 1px solid var(--line); }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 1.25rem; }
figure { margin: 0; padding: .8rem; border: 1px solid var(--line); border-radius: .5rem; min-width: 0; }
figure h2 { margin: 0 0 .25rem; }
figure svg { width: 100%; max-width: 56rem; height: auto; display: block; }
figcaption, .note, footer { font-size: .875rem; opacity: .8; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .9rem; } dd { margin: 0; }
dd { overflow-wrap: anywhere; }
"""


def check_report_path(path: Path, option: str = "--report") -> None:
    """Before minutes of work, not after them. Raises ClickException, which names the option."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise click.ClickException(f"{option} {path}: not a file in a directory that exists")


def write_report(path: Path, outcome: Outcome) -> None:
    """Raises ClickException, which names the path."""
    save_page(path, render_report(outcome))


def save_page(path: Path, page: str) -> None:
    """Raises ClickException, which names the path."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None


def render_report(outcome: Outcome) -> str:
    """Return the report of the demo as one HTML page."""
    verdict = outcome.verdict
    body = f"""<p>{escape(describe_course(outcome))}</p>
<p class="note">{escape(verdict.criterion)}</p>
<p class="note">{escape(" ".join(outcome.hardware.lines()))}</p>
{render_list("Not complete", verdict.faults)}{render_list("Not right", verdict.wrong)}\
{render_list("Other tokens when asked again", verdict.changed)}
<h2>Latency</h2>
{render_summaries(outcome.summaries())}
<p class="note">TTFT counts from when a request was due. A request belongs to the stretch in which it was due.</p>
<h2>New instances</h2>
{render_newcomers(outcome)}
{render_arrival(outcome)}<h2>Over time</h2>
<p class="note">In red what befell the system: a line where a process died, dotted where one was started again, and a
stretch in which the machine stood still.</p>
<div class="pictures">
{"".join(render_picture(picture) for picture in draw_pictures(outcome))}</div>
<h2>Deaths, restarts and stalls</h2>
{render_incidents(outcome)}
<h2>Decisions</h2>
{render_decisions(outcome)}
<h2>Settings</h2>
{render_settings(outcome.settings)}"""
    return render_page("livescale: a burst, served", outcome.sentence(), outcome.good, body)


def render_page(title: str, verdict: str, good: bool, body: str) -> str:
    """A page of its own: `body` is HTML, the rest is text."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="verdict {"good" if good else "bad"}">{escape(verdict)}</p>
{body}
</body>
</html>
"""


def describe_course(outcome: Outcome) -> str:
    first, last = outcome.periods[0], outcome.periods[-1]
    burst = outcome.periods[1]
    sources = sorted({newcomer.source for newcomer in outcome.newcomers()})
    added = f"added {len(outcome.newcomers())}, with parameters from {', '.join(sources)}" if sources else "added none"
    return (
        f"{len(outcome.records)} requests were sent in {last.end - first.start:.0f} s through the REST gateway, each "
        f"when it was due, with a burst from {burst.start - first.start:.0f} to {burst.end - first.start:.0f} s. "
        f"One instance served at first; the monitor {added}."
    )


def render_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>'


def render_summaries(rows: Sequence[Summary]) -> str:
    headings = ["", "requests", "failed", "requests/s", "tokens/s", "TTFT p50", "TTFT p99", "TBT p50", "TBT p99"]
    cells = [
        [
            row.name,
            str(row.requests),
            str(row.failed),
            f"{row.requests_per_second:.1f}",
            f"{row.tokens_per_second:.0f}",
            *map(duration, (row.ttft_p50, row.ttft_p99, row.tbt_p50, row.tbt_p99)),
        ]
        for row in rows
    ]
    return render_table(headings, cells)


def render_newcomers(outcome: Outcome) -> str:
    newcomers = outcome.newcomers()
    if not newcomers:
        return '<p class="note">None: the load did not ask for more than one instance.</p>'
    lines = (
        *tell_first_tokens(newcomers, outcome.records),
        *tell_slower(newcomers, outcome.records, outcome.prefill_seconds, outcome.incidents),
    )
    sentences = "".join(f"<p>{escape(line)}</p>\n" for line in lines)
    return sentences + render_newcomer_table(newcomers, outcome.records)


def render_arrival(outcome: Outcome) -> str:
    picture = draw_arrival(outcome)
    return "" if picture is None else render_picture(picture)


def render_newcomer_table(newcomers: Sequence[Newcomer], records: Sequence[RequestRecord]) -> str:
    rows = [(*newcomer_row(newcomer, records), newcomer.instance) for newcomer in newcomers]
    notes = "<br>\n".join(map(escape, NOTES))
    return f'{render_table((*HEADINGS, "instance"), rows)}<p class="note">{notes}</p>'


def render_decisions(outcome: Outcome) -> str:
    made = [decision for decision in outcome.story.decisions if decision.action != "hold"]
    lines = [
        f"<dt>{decision.at - outcome.start:+.1f} s</dt>"
        f"<dd>{decision.current} → {decision.target} instances: {escape(decision.reason)}</dd>"
        for decision in made
    ]
    return f"<dl>{''.join(lines)}</dl>" if made else '<p class="note">None.</p>'


def render_incidents(outcome: Outcome) -> str:
    lines = [
        f"<dt>{incident.at - outcome.start:+.1f} s</dt><dd>{escape(incident.line)}</dd>"
        for incident in outcome.incidents
    ]
    return f"<dl>{''.join(lines)}</dl>" if lines else '<p class="note">None.</p>'


def render_settings(settings: Mapping[str, str]) -> str:
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in settings.items())}</dl>"


def render_list(title: str, lines: Sequence[str], limit: int = 20) -> str:
    if not lines:
        return ""
    shown = "".join(f"<li>{escape(line)}</li>" for line in lines[:limit])
    more = f"<li>and {len(lines) - limit} more</li>" if len(lines) > limit else ""
    return f"<h2>{escape(title)}</h2><ul>{shown}{more}</ul>"


def render_picture(picture: SvgPicture) -> str:
    return (
        f"<figure><h2>{escape(picture.title)}</h2>{picture.svg}"
        f"<figcaption>{escape(picture.description)}</figcaption></figure>\n"
    )
