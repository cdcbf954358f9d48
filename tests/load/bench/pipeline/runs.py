from livescale.load.bench.pipeline.rows import PipelineRun, rows
from livescale.load.bench.record import Record
from livescale.load.records import RequestRecord
from livescale.shared.messages.scaling import Decision, Phase, PipelineRecord, ScaleRecord
from livescale.shared.messages.transfers import LiveMode, Plan, PlannedPipeline
from livescale.shared.model.latency import Latency

LATENCY = Latency(source="made up", prefill=(100.0, 1.0, 0.0), decode=(10.0, 0.0, 0.0))
DECISION = Decision(
    id="d", model="m", at=99.0, action="out", current=1, target=3, rule="r", reason="why", by="operator"
)
PLAN = Plan(
    id="scale-1",
    model="m",
    version="v",
    instances=[],
    flows=[],
    size_bytes=4,
    pipelines=[PlannedPipeline(members=["a", "b"], predicted=2.0)],
)
FORMED = PipelineRecord(id="scale-1-0", stages=["a 0-0", "b 1-1"], ready_at=102.1, running_at=102.2, ended_at=105.0)


def stream(index: int, *token_at: float) -> RequestRecord:
    return RequestRecord(
        index=index, due=0.0, sent=0.0, ended=token_at[-1], prompt_tokens=1, asked_tokens=1, token_at=list(token_at)
    )


def run(mode: LiveMode, sources: int, first_token: float, *pipelines: PipelineRecord) -> PipelineRun:
    phases = [
        Phase(name="commanded", at=100.0),
        Phase(name="first_token", at=100 + first_token, node="a"),
        Phase(name="whole", at=104.0, node="b"),
        Phase(name="whole", at=105.0, node="a"),
    ]
    arrived: dict[str, list[float | None]] = {"a": [102.1, 105.0], "b": [104.0, 102.0]}
    scale = ScaleRecord(
        id="scale-1", decision=DECISION, state="done", plan=PLAN, phases=phases, arrived=arrived, pipelines=[*pipelines]
    )
    records = [stream(0, 103.0, 104.5), stream(1, 104.0, 104.9, 105.6), stream(2, 101.0, 109.0, 109.1)]
    return PipelineRun(mode, sources, scale, records)


RUNS = [run("off", 1, 5.4), run("pipeline", 1, 5.0), run("off", 2, 5.4), run("pipeline", 2, 2.2, FORMED)]


def said(runs: list[PipelineRun]) -> dict[str, Record]:
    return {record.case: record for record in rows(runs, LATENCY, 2.0, 100, 3)}
