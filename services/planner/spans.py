"""A scale as a trace of its own, which the requests that waited for it link to.

Its root goes from the decision to the outcome. Under it lie the load of each target, the flows that bring it, and what
workers tell of them. The root links to the request that had waited longest when the scale was decided.
"""

from collections.abc import Iterator

from opentelemetry.trace import Span

from livescale.shared.messages.scaling import Phase, ScaleRecord
from livescale.shared.messages.transfers import Flow
from livescale.shared.process.otlp import Attribute, Moment, SpanWriter, TimedSpan, scale_traceparent, traceparent

MOST_FLOWS = 256  # that are shown as spans


class ScaleSpans:
    """The traces of scales under way, where they are traced."""

    def __init__(self, writer: SpanWriter | None) -> None:
        self._writer = writer
        self._open: dict[str, Span] = {}

    def begin(self, record: ScaleRecord) -> None:
        """Open the trace of a scale that begins, or that an earlier planner began."""
        if self._writer is not None and record.id not in self._open:
            self._open[record.id] = self._writer.open_root(scale_span(record), scale_traceparent(record.id))

    def traceparent(self, scale_id: str) -> str | None:
        """What names the span of a scale under way to workers; None where it is not traced."""
        span = self._open.get(scale_id)
        return None if span is None else traceparent(span)

    def end(self, record: ScaleRecord) -> None:
        """Close and send the span of a scale that is over, with all that lies under it."""
        self.begin(record)
        if self._writer is not None:
            self._writer.close(self._open.pop(record.id), scale_span(record))


def scale_span(record: ScaleRecord) -> TimedSpan:
    """The span of a scale, with the load of each target under it and its phases as moments."""
    decision, plan = record.decision, record.plan
    end = max(phase.at for phase in record.phases)
    attributes: dict[str, Attribute | None] = {
        "livescale.scale.id": record.id,
        "gen_ai.request.model": decision.model,
        "livescale.scale.action": decision.action,
        "livescale.scale.rule": decision.rule,
        "livescale.scale.reason": decision.reason,
        "livescale.scale.target": decision.target,
        "livescale.scale.live": None if plan is None else plan.live,
        "livescale.scale.state": record.state,
        "livescale.scale.outcome": record.outcome,
    }
    return TimedSpan(
        f"scale {decision.model}",
        decision.at,
        end,
        attributes,
        moments=tuple(_moment(phase) for phase in record.phases),
        links=() if decision.traceparent is None else (decision.traceparent,),
        children=tuple(_loads(record, end)),
        error="failed" if record.state == "failed" else None,
    )


def _loads(record: ScaleRecord, end: float) -> Iterator[TimedSpan]:
    """For each target the time from the plan until it served, or until the scale ended without it."""
    if record.plan is None:
        return
    planned = _at(record, "planned") or record.decision.at
    flows = record.plan.flows[:MOST_FLOWS]
    for instance in record.plan.instances:
        for worker in instance.ranks:
            served = _at(record, "serving", worker)
            yield TimedSpan(
                "load",
                planned,
                served or end,
                {"livescale.worker.id": worker, "livescale.instance.id": instance.id},
                moments=tuple(_moment(phase) for phase in record.phases if phase.node == worker),
                children=tuple(_flow(record, flow, end) for flow in flows if flow.receiver == worker),
                error=None if served else "not_served",
            )


def _flow(record: ScaleRecord, flow: Flow, end: float) -> TimedSpan:
    """From the command to send until the last block that the flow brings was ready, as far as that is known."""
    start = _at(record, "commanded") or record.decision.at
    arrived = record.arrived.get(flow.receiver, [])
    brought = [arrived[index] for index in flow.blocks if index < len(arrived)] if flow.blocks else arrived
    known = [at for at in brought if at is not None]
    whole = _at(record, "whole", flow.receiver)
    done = max(known) if known and len(known) == len(brought) else whole
    return TimedSpan(
        "flow",
        start,
        max(start, done or end),
        {
            "livescale.flow.sender": flow.sender,
            "livescale.flow.receiver": flow.receiver,
            "livescale.flow.blocks": len(brought),
            "livescale.flow.lane": f"{flow.lane} of {flow.lanes}" if flow.lanes > 1 else None,
            "livescale.flow.from_disk": flow.from_disk,
        },
        error=None if done else "not_arrived",
    )


def _at(record: ScaleRecord, name: str, node: str | None = None) -> float | None:
    return next((phase.at for phase in record.phases if (phase.name, phase.node) == (name, node)), None)


def _moment(phase: Phase) -> Moment:
    node: dict[str, Attribute] = {} if phase.node is None else {"livescale.worker.id": phase.node}
    return Moment(phase.name, phase.at, {**node, **({"detail": phase.detail} if phase.detail else {})})
