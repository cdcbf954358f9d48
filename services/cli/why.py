"""`livescale why` tells every decision about a model, what it was made from, and what came of it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click
import msgspec

from livescale.services.cli.connection import CALL_SECONDS, ask, bus_options, find_bus
from livescale.services.cli.incidents_view import ask_incidents, clock_time, tell_incident
from livescale.shared.bus.contract import Bus
from livescale.shared.messages.registry import AskModels, Incident
from livescale.shared.messages.scaling import AskDecisions, AskScales, Decision, Phase, PipelineRecord, ScaleRecord
from livescale.shared.messages.transfers import Plan, PlannedPipeline
from livescale.shared.subjects import DECISIONS, MODELS, SCALES
from livescale.shared.units import format_size

MOST_DECISIONS = 1_000

EPILOG = """
\b
The same with the nats CLI:
  nats req livescale.default.svc.planner.scales '{"model": "tiny"}'
  nats req livescale.default.svc.monitor.decisions '{"model": "tiny"}'
"""

Folded = list[Decision]  # one decision, or the holds in a row that are told as one

UNKNOWN = "no times are predicted, as the rate of links is unknown: start the system with --link-rate or --topology"


class Why(msgspec.Struct, frozen=True):
    """What `--json` prints, each list with the newest at the end.

    `error` says why the model cannot be read, if it cannot. `incidents` are the latest deaths, restarts and stalls of
    all processes.
    """

    decisions: list[Decision]
    scales: list[ScaleRecord]
    error: str | None = None
    incidents: list[Incident] = []


@click.command(epilog=EPILOG)
@click.argument("name")
@click.option(
    "--limit", type=click.IntRange(min=1, max=1000), default=10, show_default=True, help="Most decisions to show."
)
@click.option(
    "--verbose",
    is_flag=True,
    envvar="LIVESCALE_VERBOSE",
    show_envvar=True,
    help="Also show the numbers that each decision was made from.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@bus_options
def why(name: str, limit: int, verbose: bool, as_json: bool, nats_url: str | None, namespace: str | None) -> None:
    """Explain why the model NAME was scaled, or was not.

    Each decision is shown with its rule and reason; decisions in a row that change nothing are shown as one. A scale is
    shown with its plan, the times of its phases and its outcome. Deaths, restarts and stalls stand between them.
    """
    # In text, holds in a row count as one, so that more decisions are needed to fill the limit.
    decisions = limit if as_json else MOST_DECISIONS
    found = ask(find_bus(nats_url, namespace), lambda bus: ask_why(bus, name, limit, decisions))
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    from rich.console import Console

    console = Console(highlight=False)
    told = explain(name, found.decisions, found.scales, found.error, found.incidents, limit=limit, verbose=verbose)
    for line in told:
        console.print(line, markup=False, soft_wrap=True)


async def ask_why(bus: Bus, model: str, limit: int, decisions_limit: int) -> Why:
    scales = await bus.call(SCALES, AskScales(model=model, limit=limit), timeout=CALL_SECONDS)
    decisions = await bus.call(DECISIONS, AskDecisions(model=model, limit=decisions_limit), timeout=CALL_SECONDS)
    entries = {entry.spec.name: entry for entry in (await bus.call(MODELS, AskModels(), timeout=CALL_SECONDS)).models}
    if model not in entries and not scales.records and not decisions.decisions:
        known = ", ".join(sorted(entries)) or "none"
        raise click.ClickException(f"model {model!r} is not registered; registered are: {known}")
    error = entries[model].error if model in entries else None
    return Why(decisions.decisions, scales.records, error, await ask_incidents(bus))


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
    """The last `limit` decisions as lines, the oldest first.

    A decision that led to a scale is told with the scale, holds in a row are told once, and incidents since the first
    decision are told between them. `verbose` adds the numbers that decisions were made from. `error` says why the model
    could not be read when that was last tried.
    """
    records = {record.decision.id: record for record in scales}
    known = {decision.id for decision in decisions}
    # Only the planner has seen the decisions of operators, with their scales.
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


def fold_holds(decisions: Sequence[Decision]) -> list[Folded]:
    """Group holds in a row, as under a changing load one reason to hold follows another several times a second."""
    folded: list[Folded] = []
    for decision in decisions:
        if folded and decision.action == "hold" == folded[-1][0].action:
            folded[-1].append(decision)
        else:
            folded.append([decision])
    return folded


def tell_decisions(folded: Folded, verbose: bool) -> Iterator[str]:
    last = folded[-1]
    change = f"{last.current} -> {last.target}" if last.action != "hold" else f"at {last.current}"
    if last.roles:
        change += f" ({', '.join(f'{count} {role}' for role, count in sorted(last.roles.items(), reverse=True))})"
    until = f" to {clock_time(last.at)}" if len(folded) > 1 else ""
    did = f"advises {last.action}" if last.advice else last.action
    yield f"{clock_time(folded[0].at)}{until} {did} {change}, by {last.by}" + (tell_rules(folded) if until else "")
    yield f"    {'last ' if until else ''}{last.rule}: {last.reason}"
    if verbose and last.inputs:
        yield "    from " + ", ".join(f"{name} {number(value)}" for name, value in sorted(last.inputs.items()))


def tell_rules(folded: Folded) -> str:
    """How many decisions there were, and by which rules."""
    rules = Counter(each.rule for each in folded).most_common()
    if len(rules) == 1:
        return f": {len(folded)} decisions, by the rule {rules[0][0]}"
    return f": {len(folded)} decisions, by the rules " + ", ".join(f"{rule} ({count})" for rule, count in rules)


def tell_scale(record: ScaleRecord) -> Iterator[str]:
    outcome = f": {record.outcome}" if record.outcome else ""
    yield f"    {record.id} {record.state}{outcome}"
    if record.plan is not None:
        yield from tell_plan(record.plan)
    elif record.instances:
        yield f"      instances {', '.join(record.instances)}"
    for move in record.moves:
        yield f"      {move.instance} on {move.worker}: {move.reason}"
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
    """An input of a decision as text; one that was not measured is unknown, not zero."""
    return "unknown" if value is None else f"{value:.4g}"


class BlockTime(NamedTuple):
    """When a block was ready and should have been, in seconds since the first sender was told to send."""

    number: int
    took: float
    predicted: float


def tell_times(record: ScaleRecord, plan: Plan) -> Iterator[str]:
    """How long each target took in all and by block; then whether times were predicted anew on the way."""
    begun = next((phase.at for phase in record.phases if phase.name == "commanded"), None)
    whole = {phase.node: phase.at for phase in record.phases if phase.name == "whole"}
    targets = [rank for instance in plan.instances for rank in instance.ranks]
    for target in targets:
        if target in plan.parked:
            yield f"{target} had kept the parameters: nothing was sent"
            continue
        took = whole[target] - begun if begun is not None and target in whole else None
        yield f"{target} {tell_whole(took, plan.predicted.get(target))}"
        blocks = find_blocks(record.arrived.get(target, []), plan.predicted_blocks.get(target, []), begun)
        if blocks:
            yield f"  {tell_blocks(blocks)}"
    if plan.predicted:
        yield from tell_replans([phase for phase in record.phases if phase.name == "replanned"], begun)
    elif set(targets) - set(plan.parked):
        yield UNKNOWN


def tell_whole(took: float | None, predicted: float | None) -> str:
    told = "not whole" if took is None else f"whole after {took:.3f} s"
    if predicted is None:
        return f"{told}, nothing predicted"
    return f"{told}, {predicted:.3f} s predicted" + (f": {ratio(took, predicted)}" if took is not None else "")


def find_blocks(
    arrived: Sequence[float | None], predicted: Sequence[float | None], begun: float | None
) -> list[BlockTime]:
    """The blocks that arrived and were predicted, in the order in which they came."""
    both = enumerate(zip(arrived, predicted, strict=False))
    blocks = [
        BlockTime(number, at - begun, expected)
        for number, (at, expected) in both
        if at is not None and expected is not None and begun is not None
    ]
    return sorted(blocks, key=lambda block: (block.took, block.number))


def tell_blocks(blocks: Sequence[BlockTime]) -> str:
    """The first, the median and the last block, and the one whose prediction was farthest off."""
    shown = blocks if len(blocks) < 3 else [blocks[0], blocks[len(blocks) // 2], blocks[-1]]
    which = "" if shown is blocks else "; first, median, last"
    times = ", ".join(f"{block.took:.3f} for {block.predicted:.3f}" for block in shown)
    off = max(blocks, key=lambda block: (abs(block.took - block.predicted), block.number))
    farthest = f"block {off.number}: {off.took:.3f} for {off.predicted:.3f} s, {ratio(off.took, off.predicted)}"
    return f"{len(blocks)} block{'s' * (len(blocks) > 1)}{which} after {times} s; farthest off is {farthest}"


def tell_replans(replans: Sequence[Phase], begun: float | None) -> Iterator[str]:
    if replans:
        count = len({phase.at for phase in replans})
        times = f"{count} times" if count > 1 else "once"
        last = f", {replans[-1].at - begun:.3f} s after the first send" if begun is not None else ""
        yield f"times were predicted anew {times}, as the plan was made anew{last}: {replans[-1].detail}"


def ratio(took: float, predicted: float) -> str:
    return f"{took / predicted:.2f}x" if predicted > 0 else "no time was predicted"


def tell_pipelines(record: ScaleRecord, plan: Plan) -> Iterator[str]:
    """Which worker runs what in each pipeline, when the pipeline was ready, and what happened then."""
    begun = next((phase.at for phase in record.phases if phase.name == "commanded"), None)
    for planned, pipeline in zip(plan.pipelines, record.pipelines, strict=False):
        yield f"pipeline of {', '.join(pipeline.stages or planned.members)}: {tell_ready(planned, pipeline, begun)}"
        moments = tell_moments(pipeline, begun)
        if moments:
            yield f"  {moments}"
        yield from (f"  KV for {worker} was {way}" for worker, way in sorted(pipeline.kv_ways.items()))


def tell_ready(planned: PlannedPipeline, pipeline: PipelineRecord, begun: float | None) -> str:
    took = None if begun is None or pipeline.ready_at is None else pipeline.ready_at - begun
    told = "not ready" if took is None else f"ready after {took:.3f} s"
    if planned.predicted is None:
        return f"{told}, nothing predicted"
    return f"{told}, {planned.predicted:.3f} s predicted" + (f": {ratio(took, planned.predicted)}" if took else "")


def tell_moments(pipeline: PipelineRecord, begun: float | None) -> str:
    """The moments of a pipeline's life, in seconds since the first sender was told to send."""
    moments = (
        ("it ran from", pipeline.running_at, ""),
        ("first token at", pipeline.first_token_at, ""),
        ("each took up its part from", pipeline.switching_at, ""),
        ("over at" if pipeline.running_at else "given up at", pipeline.ended_at, f": {pipeline.reason}"),
    )
    return "; ".join(f"{what} {at - (begun or at):.3f} s{why}" for what, at, why in moments if at is not None)
