"""Signals that the monitor's tests are made of."""

from livescale.services.monitor.policy import RetryTimes, ScalingPolicy
from livescale.services.monitor.signals import Observed, Signals
from livescale.shared.messages.membership import EngineLoad, LeaseChanged, QueueLoad, RouterReport, WorkerReport
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.scaling import Action, Decision, ScaleRecord, ScaleState
from livescale.shared.messages.transfers import Flow, Plan, PlannedInstance

SIZE = 100
COMMON = {"downscale_delay_s": 2.0, "downscale_to_zero_delay_s": 6.0, "max_instances": 8}


def spec(**more: object) -> ModelSpec:
    return ModelSpec(name="m", path="/m", **{**COMMON, **more})  # type: ignore[arg-type]


def observed(**more: object) -> Observed:
    common = {
        **{"instances": 1, "loading": 0, "coming": 0, "leaving": 0, "draining": 0, "outdated": 0, "spare": 9},
        **{"waiting_tokens": 0, "waiting_requests": 0, "running_requests": 0, "kv_blocks_used": 0},
        **{"arriving_rate": 0.0, "prefill_rate": 1000.0, "max_requests": 10.0, "kv_blocks": 100.0, "stale": None},
    }
    return Observed(**{**common, **more})  # type: ignore[arg-type]


def load(**more: object) -> EngineLoad:
    common = {
        **{"waiting_requests": 0, "waiting_tokens": 0, "running_requests": 0, "max_requests": 10},
        **{"kv_blocks_used": 0, "kv_blocks_total": 100, "kv_block_tokens": 16, "prefill_tokens_per_second": 1000.0},
    }
    return EngineLoad(**{**common, **more})  # type: ignore[arg-type]


def serving(worker: str, engine: EngineLoad | None = None, **more: object) -> WorkerReport:
    common = {"epoch": 1, "state": "serving", "model": "m", "instance": f"i-{worker}", "arena_bytes": SIZE}
    return WorkerReport(id=worker, load=engine or load(), **{**common, **more})  # type: ignore[arg-type]


def spare(worker: str, arena_bytes: int = SIZE) -> WorkerReport:
    return WorkerReport(id=worker, epoch=1, state="spare", arena_bytes=arena_bytes)


def queues(tokens: int = 0, requests: int | None = None) -> RouterReport:
    waiting = (1 if tokens else 0) if requests is None else requests
    queue = QueueLoad(model="m", waiting_requests=waiting, waiting_tokens=tokens, oldest_seconds=0.0, running=0)
    return RouterReport(id="router-0", epoch=1, queues=[queue])


def dead(worker: str) -> LeaseChanged:
    return LeaseChanged(service="worker", id=worker, epoch=1, state="dead", reason="silent", at=0.0)


def decision(target: int, action: Action = "out", id: str = "d") -> Decision:
    return Decision(
        id=id, model="m", at=0.0, action=action, current=0, target=target, rule="r", reason="r", by="monitor"
    )


def record(state: ScaleState, workers: list[str], action: Action = "out") -> ScaleRecord:
    instances = [PlannedInstance(id=f"i-{worker}", ranks=[worker]) for worker in workers]
    plan = Plan(
        id="s-1",
        model="m",
        version="v",
        instances=instances,
        flows=[Flow(sender="x", receiver=worker, ticket=1) for worker in workers],
        size_bytes=SIZE,
    )
    return ScaleRecord(
        id="s-1",
        decision=decision(len(workers), action),
        state=state,
        plan=plan if action == "out" else None,
        instances=[instance.id for instance in instances],
    )


class Watched:
    """A policy and its signals, with one model."""

    def __init__(self, model: ModelSpec | None = None) -> None:
        self.signals = Signals(stale_seconds=2.0)
        self.policy = ScalingPolicy(self.signals, RetryTimes(asked_seconds=5.0, retry_seconds=1.0))
        entry = ModelEntry(spec=model or spec(), state="ready", version="v", size_bytes=SIZE)
        self.signals.on_models([entry])

    def hear(self, now: float, *reports: WorkerReport | RouterReport) -> None:
        for report in reports:
            if isinstance(report, WorkerReport):
                self.signals.on_worker(report, now)
            else:
                self.signals.on_router(report, now)

    def judge(self, now: float) -> tuple[str, int, str]:
        """Return action, target and rule of the next decision."""
        [verdict] = self.policy.decide(now)
        return verdict.action, verdict.target, verdict.rule

    def reason(self, now: float) -> str:
        [verdict] = self.policy.decide(now)
        return verdict.reason
