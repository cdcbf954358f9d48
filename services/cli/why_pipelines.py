"""What became of a plan's execution pipelines, in words."""

from collections.abc import Iterator

from livescale.services.cli.why_times import ratio
from livescale.shared.messages.scaling import PipelineRecord, ScaleRecord
from livescale.shared.messages.transfers import Plan, PlannedPipeline


def tell_pipelines(record: ScaleRecord, plan: Plan) -> Iterator[str]:
    """Of each who runs what, when it was ready and should have been, and what came then."""
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
    """What happened to it, in seconds since the first sender was told to send."""
    moments = (
        ("it ran from", pipeline.running_at, ""),
        ("first token at", pipeline.first_token_at, ""),
        ("each took up its part from", pipeline.switching_at, ""),
        ("over at" if pipeline.running_at else "given up at", pipeline.ended_at, f": {pipeline.reason}"),
    )
    return "; ".join(f"{what} {at - (begun or at):.3f} s{why}" for what, at, why in moments if at is not None)
