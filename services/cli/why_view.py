"""Decisions and scales in words."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from services.cli.why_pipelines import tell_pipelines
from services.cli.why_times import tell_times
from shared.messages.scaling import Decision, Phase, ScaleRecord
from shared.messages.transfers import Plan


def explain(
    model: str, decisions: Sequence[Decision], scales: Sequence[ScaleRecord], error: str | None = None
) -> Iterator[str]:
    """Lines, oldest first. A decision that led to a scale is told with it; equal holds in a row are told once.

    `error`: why the model could not be read when that was last tried.
    """
    records = {record.decision.id: record for record in scales}
    known = {decision.id for decision in decisions}
    # Operators' decisions are the planner's alone; the monitor has never seen them.
    told = [*decisions, *(record.decision for record in scales if record.decision.id not in known)]
    told.sort(key=lambda decision: (decision.at, decision.id))
    if not told:
        yield f"{model}: nothing was decided yet; the monitor decides when load is reported"
    for decision, repeats in merge_holds(told):
        yield from tell_decision(decision, repeats)
        if decision.id in records:
            yield from tell_scale(records[decision.id])
    if error is not None:
        yield f"{model} could not be read: {error}; that is tried again, ever more seldom"


def merge_holds(decisions: Sequence[Decision]) -> list[tuple[Decision, int]]:
    """Each decision and how many holds by the same rule it stands for, itself included; the last of them is shown."""
    merged: list[tuple[Decision, int]] = []
    for decision in decisions:
        if merged and decision.action == "hold" == merged[-1][0].action and decision.rule == merged[-1][0].rule:
            merged[-1] = (decision, merged[-1][1] + 1)
        else:
            merged.append((decision, 1))
    return merged


def tell_decision(decision: Decision, repeats: int) -> Iterator[str]:
    change = f"{decision.current} -> {decision.target}" if decision.action != "hold" else f"at {decision.current}"
    times = f" ({repeats} times)" if repeats > 1 else ""
    yield f"{clock_time(decision.at)} {decision.action} {change}, by {decision.by}{times}"
    yield f"    {decision.rule}: {decision.reason}"
    if decision.inputs:
        yield "    from " + ", ".join(f"{name} {number(value)}" for name, value in sorted(decision.inputs.items()))


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
        yield f"      {plan.size_bytes / 1e6:.1f} MB along {' -> '.join(path)}"
    for reason in plan.reasons:
        yield f"      because {reason}"


def since(phase: Phase, start: float) -> str:
    return f"{(phase.at - start) * 1000:+9.1f} ms"


def clock_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]


def number(value: float | None) -> str:
    """An input that was not measured is unknown, not zero."""
    return "unknown" if value is None else f"{value:.4g}"
