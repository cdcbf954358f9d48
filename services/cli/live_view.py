"""Live scaling as operators want it: who runs which layers meanwhile, what waits, what was handed over."""

from collections.abc import Sequence

import msgspec

from livescale.shared.messages.membership import WorkerReport


class LiveRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that takes requests while it loads, or did. It `runs` the layers whose parameters are here, `ready` of
    `layers`; of a request that a helper takes over it runs the rest. `handed_over`: how many requests, by helper. Where
    it is part of an execution pipeline, `runs` says which blocks are its own there."""

    worker: str
    state: str
    ready: int
    layers: int
    runs: str
    waiting: int
    helped_by: list[str]
    helpers_run: str
    handed_over: dict[str, int]


def live_rows(workers: Sequence[WorkerReport]) -> list[LiveRow]:
    """Of those that are live, have requests that others may take over, or have handed some over."""
    helpers = {report.id: [each.id for each in workers if report.id in each.helping] for report in workers}
    return [
        live_row(report, sorted(helpers[report.id]))
        for report in sorted(workers, key=lambda report: report.id)
        if report.state == "live" or report.pipeline or report.handed_over or helpers[report.id]
    ]


def live_row(report: WorkerReport, helpers: list[str]) -> LiveRow:
    layers = count_layers(report)
    ready = min(report.live_layers, layers) if report.state in ("loading", "live") else layers
    alone = f"1-{ready}" if ready else "none yet"
    return LiveRow(
        worker=report.id,
        state=report.state,
        ready=ready,
        layers=layers,
        runs=f"blocks {report.stage} of {report.pipeline}" if report.pipeline else alone,
        waiting=report.live_waiting,
        helped_by=helpers,
        helpers_run=f"the rest, to {layers}" if helpers else "",
        handed_over=report.handed_over,
    )


def count_layers(report: WorkerReport) -> int:
    """Blocks but for the embedding and the head."""
    return max(0, report.holding.total - 2) if report.holding is not None else 0
