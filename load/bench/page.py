"""The HTML report that all benches share: what was measured, the bars, and pictures."""

from collections.abc import Sequence
from html import escape

from livescale.load.bench.record import Conditions, Record
from livescale.load.pictures import SvgPicture
from livescale.load.report import render_page, render_picture, render_table

HEADINGS = ("", "measured", "", "against", "ratio", "bar", "kept")


def render_bench(
    title: str,
    intro: str,
    pictures: Sequence[SvgPicture],
    records: Sequence[Record],
    conditions: Conditions,
    tables: str = "",
) -> str:
    """The whole page; `tables` come before that of all records."""
    missed = [record.case for record in records if record.ok is False]
    verdict = f"Missed: {', '.join(missed)}." if missed else "Every bar was kept."
    if conditions.samples.is_void:
        verdict = "The run is void: the machine stood still too often."
    body = f"""<p>{intro}</p>
<p class="note">{escape(" ".join(conditions.lines()))}</p>
<div class="pictures">
{"".join(map(render_picture, pictures))}</div>
{tables}<h2>Measured</h2>
{render_table(HEADINGS, [cells(record) for record in records])}"""
    return render_page(title, verdict, not missed and not conditions.samples.is_void, body)


def cells(record: Record) -> list[str]:
    figures = (record.value, record.unit, record.against, record.ratio, record.bar)
    kept = {None: "", True: "yes", False: "no"}[record.ok]
    return [
        record.case,
        *("" if each is None else each if isinstance(each, str) else f"{each:.4g}" for each in figures),
        kept,
    ]
