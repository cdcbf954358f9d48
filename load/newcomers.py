"""Follows each new instance from the decision to scale until its tokens, as sentences and as table rows."""

from collections.abc import Iterator, Sequence
from math import inf

from rich.table import Table

from livescale.load.incidents import RunIncident
from livescale.load.records import RequestRecord
from livescale.load.stats import duration, new_table
from livescale.load.story import Newcomer

HEADINGS = (
    *("worker", "from", "first layer ready", "first layer run", "first token, shared", "whole", "first token, own"),
    "handed over",
)
LATE = 1.1  # so many times what was predicted
TEXTS = ("worker", "from", "handed over")
NOTES = (
    "Counted from the decision to scale; a dash: it did not happen.",
    "First layer: ready, and run by the new instance for a request (live).",
    "First token, shared: of a request of which it ran layers before it was whole.",
    "Whole: all parameters are there; without live scaling it does nothing before.",
    "First token, own: the first that it sent itself.",
    "Handed over: requests that others took over from it, by the worker that did.",
)


def newcomer_row(newcomer: Newcomer, records: Sequence[RequestRecord]) -> tuple[str, ...]:
    """The table row of a new instance: its cells stand under `HEADINGS`."""
    times = (
        *(newcomer.live_at, newcomer.first_layer_at, newcomer.shared_token_at(records)),
        *(newcomer.whole_at, newcomer.first_token_at),
    )
    handed_over = ", ".join(f"{source}: {count}" for source, count in sorted(newcomer.handed_over.items()))
    since = (duration(newcomer.since_decision(at)) for at in times)
    return newcomer.worker, newcomer.source, *since, handed_over or "-"


def tell_first_tokens(newcomers: Sequence[Newcomer], records: Sequence[RequestRecord]) -> Iterator[str]:
    """For each new instance, when its user had a first token, and when he would have had it from an instance that
    serves only once it is whole."""
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


def tell_slower(
    newcomers: Sequence[Newcomer],
    records: Sequence[RequestRecord],
    prefill_seconds: float,
    incidents: Sequence[RunIncident] = (),
) -> Iterator[str]:
    """Explain each new instance whose first token came later live than it would have after a stop. After a stop there
    is one prefill between the last parameter, at its predicted time, and the first token."""
    for newcomer in newcomers:
        whole_at = newcomer.predicted_at or newcomer.whole_at
        first_at = min(newcomer.shared_token_at(records) or inf, newcomer.first_token_at or inf)
        if newcomer.live_at is None or whole_at is None or not whole_at + prefill_seconds < first_at < inf:
            continue
        live, stop = (duration(newcomer.since_decision(at)) for at in (first_at, whole_at + prefill_seconds))
        yield (
            f"{newcomer.worker}: live scaling was slower than waiting for all parameters: its first token came {live} "
            f"after the decision, and would have come after {stop}, as "
            f"{'; '.join(reasons(newcomer, first_at, incidents))}."
        )


def reasons(newcomer: Newcomer, first_at: float, incidents: Sequence[RunIncident]) -> Iterator[str]:
    """Why the first token of an instance that was live came so late."""
    for each in incidents:
        if each.what == "stall" and newcomer.decided_at <= each.at <= first_at:
            yield each.line
    took, should = (newcomer.since_decision(at) for at in (newcomer.whole_at, newcomer.predicted_at))
    if took is not None and should is not None and took > LATE * should:
        yield (
            f"its parameters took {duration(took)} where {duration(should)} were predicted: it and its senders ran "
            "requests meanwhile, and without live scaling they might have come in time"
        )
    handed_over = [each for each in newcomer.hand_offs if each.at <= (newcomer.whole_at or inf)]
    if not handed_over:
        yield "no worker took a request over from it before it was whole"
    elif not any(each.layers for each in handed_over):
        yield "it had run no layer of the requests that were taken over from it"
    else:
        begun = duration(newcomer.since_decision(min(each.at for each in handed_over if each.layers)))
        yield f"the first request that it shared was taken over only after {begun}, with the other layers still to run"


def newcomer_table(newcomers: Sequence[Newcomer], records: Sequence[RequestRecord]) -> Table:
    """Narrow enough for 80 columns: headings are folded."""
    table = new_table("New instances, counted from the decision")
    for heading in HEADINGS:
        is_text = heading in TEXTS
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=is_text)
    for newcomer in newcomers:
        table.add_row(*newcomer_row(newcomer, records))
    return table
