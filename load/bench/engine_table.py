"""The engines beside each other, as a table: a row a case, a column an engine."""

from rich.table import Table

from livescale.load.bench.engine_cases import CASES
from livescale.load.bench.engine_rows import ENGINES, SizeRun
from livescale.load.tables import new_table

Cells = list[str]


def rate_cells(run: SizeRun) -> list[Cells]:
    """Tokens/s by case; the relative error of logits, and seconds from the process's start to its first answer."""
    return [
        *([case.name, *(cell(run, name, run.rate(case, name), "{:.0f}") for name in ENGINES)] for case in CASES),
        ["error of logits", *(cell(run, name, run.errors.get(name), "{:.2%}") for name in ENGINES)],
        ["start (s)", *(cell(run, name, seconds_to_answer(run, name), "{:.1f}") for name in ENGINES)],
    ]


def cell(run: SizeRun, engine: str, figure: float | None, form: str) -> str:
    """Why there is none, where there is none."""
    if figure is None:
        return run.absent.get(engine, "")
    return form.format(figure) + (" (wrong)" if engine in run.wrong else "")


def seconds_to_answer(run: SizeRun, engine: str) -> float | None:
    ready = run.ready.get(engine)
    return None if ready is None else ready.answering


def rate_table(run: SizeRun) -> Table:
    table = new_table(f"{run.size}, tokens/s")
    table.add_column("", no_wrap=True)
    for name in ENGINES:
        table.add_column(name, justify="right")
    for cells in rate_cells(run):
        table.add_row(*cells)
    return table
