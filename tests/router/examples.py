"""Requests, reports and policies that the router's tests are made of."""

from msgspec.structs import replace

from livescale.services.router.admission import RouterLimits
from livescale.services.router.effects import AdmitTo, Effect, Learn
from livescale.services.router.policy import RouterPolicy
from livescale.shared.messages.membership import EngineLoad, LeaseChanged, LeaseState, ServiceName, WorkerReport
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.requests import Submit

NOW = 1_000.0


def entry(name: str, **more: object) -> ModelEntry:
    return ModelEntry(spec=ModelSpec(name=name, path="/m"), **{"state": "ready", **more})  # type: ignore[arg-type]


def request(id: str, model: str = "m", prompt: int = 10, **more: object) -> Submit:
    common = {"gateway": "gateway-0", "max_tokens": 6, "deadline": NOW + 60}
    return Submit(request_id=id, model=model, prompt=[1] * prompt, **{**common, **more})  # type: ignore[arg-type]


def load(*, running: int = 0, used: int = 0, slots: int = 2, blocks: int = 100, full: bool = False) -> EngineLoad:
    return EngineLoad(
        waiting_requests=0,
        waiting_tokens=0,
        running_requests=running,
        max_requests=slots,
        kv_blocks_used=used,
        kv_blocks_total=blocks,
        kv_block_tokens=4,
        kv_full=full,
    )


def rated(rate: float | None, slots: int = 2) -> EngineLoad:
    return replace(load(slots=slots), prefill_tokens_per_second=rate)


def report(worker: str, engine: EngineLoad | None = None, **more: object) -> WorkerReport:
    common = {"epoch": 1, "state": "serving", "model": "m", "instance": f"i-{worker}"}
    return WorkerReport(id=worker, load=engine or load(), **{**common, **more})  # type: ignore[arg-type]


def lease(id: str, state: LeaseState, epoch: int = 1, service: ServiceName = "worker") -> LeaseChanged:
    return LeaseChanged(service=service, id=id, epoch=epoch, state=state, reason="said so", at=NOW)


def policy(
    *reports: WorkerReport,
    look_ahead: int = 0,
    max_waiting: int = 10,
    max_waiting_tokens: int = 1000,
    disaggregates: bool = False,
) -> RouterPolicy:
    limits = RouterLimits(max_waiting, max_waiting_tokens, look_ahead, disaggregation="on" if disaggregates else "off")
    made = RouterPolicy(limits, 1000)
    made.on_models([entry("m"), entry("n")])
    for one in reports:
        assert hear(made, one) == []
    return made


def hear(made: RouterPolicy, one: WorkerReport, now: float = NOW) -> list[Effect]:
    """Give the policy a report, and the answer of a new worker: it runs nothing yet."""
    effects = made.on_report(one, now)
    for effect in effects:
        if isinstance(effect, Learn):
            made.learned(effect.worker, [], now)
    return [effect for effect in effects if not isinstance(effect, Learn)]


def admissions(effects: list[Effect]) -> list[tuple[str, str]]:
    """(request, worker) of those that are admitted; there must be nothing else."""
    admitted = [effect for effect in effects if isinstance(effect, AdmitTo)]
    assert len(admitted) == len(effects)
    return [(effect.request.request_id, effect.worker) for effect in admitted]


def admit(made: RouterPolicy, *requests: Submit, now: float = NOW) -> list[tuple[str, str]]:
    """Submit, dispatch, and have the workers take what they are given."""
    for one in requests:
        made.submit(one, now)
    effects = made.dispatch(now)
    for effect in effects:
        if isinstance(effect, AdmitTo):
            made.admitted(effect.worker, effect.request.request_id)
    return admissions(effects)
