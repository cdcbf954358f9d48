"""A new instance's way from the decision to its tokens, in words and as a table."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from load.records import RequestRecord
from load.story import Newcomer
from load.tables import duration, new_table

HEADINGS = (
    *("worker", "from", "first layer ready", "first layer run", "first token, shared", "whole", "first token, own"),
    "handed over",
)
TEXTS = ("worker", "from", "handed over")
NOTES = (
    "Counted from the decision to scale; a dash: it did not happen.",
    "First layer: ready, and run by the new instance for a request (live).",
    "First token, shared: of a request of which it ran layers before it was whole.",
    "Whole: all parameters are there; without live scaling it does nothing before.",
    "First token, own: the first that it sent itself.",
    "Handed over: requests that others took over from it, by who did.",
)


def newcomer_row(newcomer: Newcomer, records: Sequence[RequestRecord]) -> tuple[str, ...]:
    """Cells under `HEADINGS`."""
    times = (
        *(newcomer.live_at, newcomer.first_layer_at, newcomer.shared_token_at(records)),
        *(newcomer.whole_at, newcomer.first_token_at),
    )
    handed_over = ", ".join(f"{source}: {count}" for source, count in sorted(newcomer.handed_over.items()))
    since = (duration(newcomer.since_decision(at)) for at in times)
    return newcomer.worker, newcomer.source, *since, handed_over or "-"


def tell_first_tokens(newcomers: Sequence[Newcomer], records: Sequence[RequestRecord]) -> Iterator[str]:
    """For each new instance what a user had of it, and what he would have had if it had stopped until it was whole."""
    for newcomer in newcomers:
        whole = duration(newcomer.since_decision(newcomer.whole_at))
        shared_at = newcomer.shared_token_at(records)
        if shared_at is not None:
            yield (
                f"{newcomer.worker}, live from its first layer on: its first token, shared with "
                f"{', '.join(sorted(newcomer.handed_over))}, {duration(newcomer.since_decision(shared_at))} after the "
                f"decision. After its full load, as others do, it would not have begun before {whole}."
            )
        else:
            how = "it had nothing to share" if newcomer.live_at is not None else "not live"
            own = duration(newcomer.since_decision(newcomer.first_token_at))
            yield f"{newcomer.worker}, {how}: whole {whole} after the decision, its first token after {own}."


def newcomer_table(newcomers: Sequence[Newcomer], records: Sequence[RequestRecord]) -> Table:
    """Narrow enough for 80 columns: headings are folded."""
    table = new_table("New instances, counted from the decision")
    for heading in HEADINGS:
        is_text = heading in TEXTS
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=is_text)
    for newcomer in newcomers:
        table.add_row(*newcomer_row(newcomer, records))
    return table
