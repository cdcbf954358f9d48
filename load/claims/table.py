"""The table of all claims: for people, as Markdown, and as JSON."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from livescale.load.claims.claim import Judgement, Verdict
from livescale.load.claims.workbench import Mode

HEADINGS = ("source", "claim", "paper", "ours", "tolerance", "result")
MODES = {
    Mode.QUICK: "pure and short claims only",
    Mode.DEFAULT: "one seed, and a part of one window of each trace",
    Mode.FULL: "three seeds, and both windows of each trace",
}


class ClaimRow(msgspec.Struct, frozen=True, kw_only=True):
    """One claim as JSON has it. `ours` are numbers by what they are of, a row for each setting."""

    id: str
    source: str
    says: str
    setting: str
    kind: str
    paper: str
    ours: list[list[tuple[str, float]]]
    tolerance: str
    result: Verdict
    reason: str
    note: str


def row_of(outcome: Judgement) -> ClaimRow:
    claim, bound, measured = outcome.claim, outcome.claim.bound, outcome.measured
    return ClaimRow(
        id=claim.id,
        source=claim.source,
        says=claim.says,
        setting=claim.setting,
        kind="" if bound is None else bound.kind,
        paper="" if bound is None else bound.says,
        ours=[] if measured is None else [[(figure.name, figure.value) for figure in row] for row in measured.rows],
        tolerance="" if bound is None else bound.tolerance,
        result=outcome.verdict,
        reason=outcome.reason,
        note="" if measured is None else measured.note,
    )


def tell_counts(outcomes: Sequence[Judgement]) -> str:
    """Say in a sentence how many claims hold, fail, or were not checked."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    told = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]]
    return f"{len(outcomes)} claims: {', '.join(told)}."


def cells(outcome: Judgement) -> list[str]:
    """Return one claim as a row of the table: source, claim, paper, ours, tolerance, result."""
    row = row_of(outcome)
    unit = "" if outcome.claim.bound is None else outcome.claim.bound.unit
    ours = "" if outcome.measured is None else f"{outcome.measured} {unit}".strip()
    return [row.source, row.says, row.paper, ours, row.tolerance, row.result]


def render_markdown(outcomes: Sequence[Judgement], mode: Mode) -> str:
    """The page for the documentation: the table, then settings and reasons by claim."""
    command = "livescale claims" if mode is Mode.DEFAULT else f"livescale claims {mode}"
    lines = [
        f"<!-- Made by {command}: do not edit. -->",
        "",
        "# What the papers claim",
        "",
        f"`{command}` made this page: {MODES[mode]}. Only `--full` decides.",
        "",
        tell_counts(outcomes),
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
        *("| " + " | ".join(map(escape, cells(outcome))) + " |" for outcome in outcomes),
        "",
        "## Settings, notes and reasons",
        "",
        *(line for outcome in outcomes for line in explain(outcome)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def explain(outcome: Judgement) -> list[str]:
    """How a claim was measured, and why it does not hold if it does not."""
    told = details(outcome)
    return [f"- **{outcome.claim.source}**: {outcome.claim.says} *{capital(outcome.verdict)}.* {told}"] if told else []


def details(outcome: Judgement) -> str:
    """The setting, the note and the reason of a claim, as far as there are any."""
    row = row_of(outcome)
    return " ".join(part for part in (row.setting and f"{capital(row.setting)}.", row.note, row.reason) if part)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def escape(text: str) -> str:
    return text.replace("|", "\\|")
