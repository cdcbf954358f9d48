"""Decisions and scales in words."""

from collections import Counter
from collections.abc import Iterator, Sequence

from livescale.services.cli.incidents_view import tell_incident
from livescale.services.cli.times import clock_time
from livescale.services.cli.why_pipelines import tell_pipelines
from livescale.services.cli.why_times import tell_times
from livescale.shared.messages.membership import Incident
from livescale.shared.messages.scaling import Decision, Phase, ScaleRecord
from livescale.shared.messages.transfers import Plan
from livescale.shared.units import format_size

Told = list[Decision]  # one decision, or the holds in a row that are told as one


def explain(
    model: str,
    decisions: Sequence[Decision],
    scales: Sequence[ScaleRecord],
    error: str | None = None,
    incidents: Sequence[Incident] = (),
    *,
    limit: int = 1_000,
    verbose: bool = False,
) -> Iterator[str]:
    """Lines, oldest first, of the last `limit`. A decision that led to a scale is told with it; holds in a row are told
    once; between them is what befell processes and machines since the first of them. `verbose`: what decisions were
    made from.

    `error`: why the model could not be read when that was last tried.
    """
    records = {record.decision.id: record for record in scales}
    known = {decision.id for decision in decisions}
    # Operators' decisions are the planner's alone; the monitor has never seen them.
    all_told = [*decisions, *(record.decision for record in scales if record.decision.id not in known)]
    told = fold_holds(sorted(all_told, key=lambda decision: (decision.at, decision.id)))[-limit:]
    if not told:
        yield f"{model}: nothing was decided yet; the monitor decides when load is reported"
    waiting = [each for each in incidents if told and each.at >= told[0][0].at]
    for folded in told:
        while waiting and waiting[0].at < folded[0].at:
            yield tell_incident(waiting.pop(0))
        yield from tell_decisions(folded, verbose)
        if folded[-1].id in records:
            yield from tell_scale(records[folded[-1].id])
    yield from map(tell_incident, waiting)
    if error is not None:
        yield f"{model} could not be read: {error}; that is tried again, ever more seldom"


def fold_holds(decisions: Sequence[Decision]) -> list[Told]:
    """Under a changing load one reason to hold follows another, several times a second."""
    folded: list[Told] = []
    for decision in decisions:
        if folded and decision.action == "hold" == folded[-1][0].action:
            folded[-1].append(decision)
        else:
            folded.append([decision])
    return folded


def tell_decisions(folded: Told, verbose: bool) -> Iterator[str]:
    last = folded[-1]
    change = f"{last.current} -> {last.target}" if last.action != "hold" else f"at {last.current}"
    until = f" to {clock_time(last.at)}" if len(folded) > 1 else ""
    rules = Counter(each.rule for each in folded)
    times = ", ".join(f"{rule} {count} times" if count > 1 else rule for rule, count in rules.most_common())
    yield f"{clock_time(folded[0].at)}{until} {last.action} {change}, by {last.by}" + (f": {times}" if until else "")
    yield f"    {'last ' if until else ''}{last.rule}: {last.reason}"
    if verbose and last.inputs:
        yield "    from " + ", ".join(f"{name} {number(value)}" for name, value in sorted(last.inputs.items()))


def tell_scale(record: ScaleRecord) -> Iterator[str]:
    outcome = f": {record.outcome}" if record.outcome else ""
    yield f"    {record.id} {record.state}{outcome}"
    if record.plan is not None:
        yield from tell_plan(record.plan)
    elif record.instances:
        yield f"      instances {', '.join(record.instances)}"
    for phase in record.phases:
        where = f" at {phase.node}" if phase.node else ""
        why = f": {phase.detail}" if phase.detail else ""
        yield f"      {since(phase, record.decision.at)} {phase.name}{where}{why}"
    if record.plan is not None:
        yield from (f"      {line}" for line in tell_times(record, record.plan))
        yield from (f"      {line}" for line in tell_pipelines(record, record.plan))


def tell_plan(plan: Plan) -> Iterator[str]:
    for instance in plan.instances:
        yield f"      {instance.id} on {', '.join(instance.ranks)}"
    for path in plan.paths:
        yield f"      {format_size(plan.size_bytes)} along {' -> '.join(path)}"
    for reason in plan.reasons:
        yield f"      because {reason}"


def since(phase: Phase, start: float) -> str:
    return f"{(phase.at - start) * 1000:+9.1f} ms"


def number(value: float | None) -> str:
    """An input that was not measured is unknown, not zero."""
    return "unknown" if value is None else f"{value:.4g}"
