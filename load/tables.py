"""The tables a person reads at the end."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from livescale.load.stats import Summary


def new_table(title: str) -> Table:
    """Narrow enough for 80 columns."""
    return Table(
        title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1)
    )


def latency_table(rows: Sequence[Summary], title: str) -> Table:
    table = new_table(title)
    table.add_column("", no_wrap=True)
    for heading in ("requests", "failed", "req/s", "tokens/s", "TTFT p50", "p99", "TBT p50", "p99"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            str(row.requests),
            str(row.failed),
            f"{row.requests_per_second:.1f}",
            f"{row.tokens_per_second:.0f}",
            *map(duration, (row.ttft_p50, row.ttft_p99, row.tbt_p50, row.tbt_p99)),
        )
    return table


def duration(seconds: float | None) -> str:
    """Three digits and a unit; a dash for what was not measured."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
