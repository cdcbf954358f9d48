"""The report of `livescale bench engine`: the engines side by side in a table, and a picture for each size."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from matplotlib.axes import Axes
from rich.table import Table

from livescale.load.bench.engine.cases import CASES
from livescale.load.bench.engine.rows import ENGINES, LLAMA, OWN, TRANSFORMERS, VLLM, SizeRun
from livescale.load.bench.page import render_bench
from livescale.load.bench.record import Conditions, Record
from livescale.load.pictures import BLUE, GREEN, GREY, INK, ORANGE, SvgPicture, draw, place_legend
from livescale.load.report import render_table, save_page
from livescale.load.stats import new_table

Cells = list[str]
COLOURS: Mapping[str, str] = {OWN: BLUE, TRANSFORMERS: GREY, VLLM: GREEN, LLAMA: ORANGE}
BAR_WIDTH = 0.2


def rate_cells(run: SizeRun) -> list[Cells]:
    """Tokens/s by case; the relative error of logits, and seconds from the process's start to its first answer."""
    return [
        *([case.name, *(cell(run, name, run.rate(case, name), "{:.0f}") for name in ENGINES)] for case in CASES),
        ["error of logits", *(cell(run, name, run.errors.get(name), "{:.2%}") for name in ENGINES)],
        ["start (s)", *(cell(run, name, seconds_to_answer(run, name), "{:.1f}") for name in ENGINES)],
    ]


def cell(run: SizeRun, engine: str, figure: float | None, form: str) -> str:
    """The figure as text, or why there is none."""
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


def write_page(
    path: Path, runs: Sequence[SizeRun], records: Sequence[Record], rounds: int, conditions: Conditions
) -> None:
    """Raises ClickException, which names the path."""
    save_page(path, render_engine(runs, records, rounds, conditions))


def render_engine(runs: Sequence[SizeRun], records: Sequence[Record], rounds: int, conditions: Conditions) -> str:
    """Return the report of the engine bench as one HTML page."""
    tables = "".join(map(render_size, runs))
    intro = f"""One thread, one core. Medians of {rounds} rounds in which engines took turns; tokens a second of CPU
time. Logits are compared with transformers in float32, and in float64 where engines compute in float32."""
    return render_bench(
        "livescale: the engine beside others", intro, list(map(draw_size, runs)), records, conditions, tables
    )


def render_size(run: SizeRun) -> str:
    ran = f"<p>{run.dtype}, by the kernels {escape(run.ready[OWN].kernels)}</p>"
    return f"<h2>{escape(run.size)}, tokens/s</h2>\n{ran}\n{render_table(('', *ENGINES), rate_cells(run))}"


def draw_size(run: SizeRun) -> SvgPicture:
    return draw(
        f"{run.size} parameters",
        f"Tokens/s as a multiple of those of {OWN}, by case: above the line is faster.",
        lambda axes: paint_rates(axes, run),
    )


def paint_rates(axes: Axes, run: SizeRun) -> None:
    shown = [name for name in ENGINES if name not in run.absent]
    for number, name in enumerate(shown):
        offsets = [place + (number - (len(shown) - 1) / 2) * BAR_WIDTH for place in range(len(CASES))]
        ratios = [(run.rate(case, name) or 0.0) / (run.rate(case, OWN) or 1.0) for case in CASES]
        axes.bar(offsets, ratios, BAR_WIDTH, color=COLOURS[name], label=name)
    axes.axhline(1.0, color=INK, linewidth=0.8)
    axes.set_xticks(range(len(CASES)), [case.name.replace(" ", "\n", 1) for case in CASES], size=7)
    axes.set_ylabel(f"tokens/s / {OWN}")
    axes.grid(visible=False, axis="x")
    place_legend(axes)
