"""Commands that ask, and services that answer as the real ones do."""

import asyncio

from click.testing import CliRunner, Result

from livescale.services.cli.main import cli
from livescale.shared.bus.contract import Context, Endpoint, Refusal
from livescale.shared.messages.membership import AskMetrics, Member, MetricsText, WorkerReport
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import (
    AskIncidents,
    AskModels,
    AskSnapshot,
    Incident,
    IncidentList,
    ModelEntry,
    ModelList,
    Snapshot,
)
from livescale.shared.messages.scaling import (
    AskDecisions,
    AskScales,
    Decision,
    Decisions,
    RoleSet,
    Scale,
    ScaleAccepted,
    ScaleRecord,
    ScaleRecords,
    SetRole,
)
from livescale.shared.subjects import DECISIONS, INCIDENTS, METRICS, MODELS, ROLE, SCALE, SCALES, SNAPSHOT
from tests.nats_server import NatsServer

DECISION = Decision(
    id="d-1", model="tiny", at=1.0, action="out", current=1, target=2, rule="by hand", reason="asked", by="operator"
)

HELD = Decision(
    id="d-2",
    model="tiny",
    at=2.0,
    action="hold",
    current=0,
    target=0,
    rule="capacity",
    reason="1 wanted, no spare worker fits",
    by="monitor",
)


MEMBER = Member(service="worker", id="worker-0", pid=4711, host="h", epoch=1, lease="alive", system="127.0.0.1:9")


class Answers:
    """What registry, planner and monitor answer."""

    scaled_to: int | None = None
    polls: int = 0
    outcome: str = "done"

    async def snapshot(self, message: AskSnapshot, context: Context) -> Snapshot:
        return Snapshot(
            members=[MEMBER],
            workers=[WorkerReport(id="worker-0", epoch=1, state="spare")],
        )

    async def scale(self, message: Scale, context: Context) -> ScaleAccepted:
        if message.model != "tiny":
            raise Refusal(404, f"no model {message.model!r} is registered")
        self.scaled_to = message.instances
        return ScaleAccepted(scale_id="scale-1", actual=1, target=message.instances, reason="one spare worker")

    async def role(self, message: SetRole, context: Context) -> RoleSet:
        if message.worker != "worker-0":
            raise Refusal(404, f"no worker {message.worker!r} is alive; `livescale status` lists them")
        return RoleSet(worker="worker-0", instance="instance-1", role=message.role, before="colocated")

    async def scales(self, message: AskScales, context: Context) -> ScaleRecords:
        if message.model != "tiny":
            return ScaleRecords()
        self.polls += 1
        state = "loading" if self.polls < 3 else self.outcome
        return ScaleRecords(
            records=[ScaleRecord(id="scale-1", decision=DECISION, state=state, outcome="told")]  # type: ignore[arg-type]
        )

    async def metrics(self, message: AskMetrics, context: Context) -> MetricsText:
        return MetricsText(text="# HELP process_resident_memory_bytes x\nprocess_resident_memory_bytes 3.45e+08\n")

    async def incidents(self, message: AskIncidents, context: Context) -> IncidentList:
        return IncidentList(
            incidents=[Incident(at=1e9, kind="stall", who="box", text="the machine stood still for 2.1 s")]
        )

    async def models(self, message: AskModels, context: Context) -> ModelList:
        return ModelList(models=[ModelEntry(spec=ModelSpec(name="tiny", path="/m"), state="ready")])

    async def decisions(self, message: AskDecisions, context: Context) -> Decisions:
        return Decisions(decisions=[HELD] if message.limit == 1 else [])

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(SNAPSHOT, self.snapshot),
            Endpoint(SCALE, self.scale),
            Endpoint(SCALES, self.scales),
            Endpoint(ROLE, self.role),
            Endpoint(DECISIONS, self.decisions),
            Endpoint(MODELS, self.models),
            Endpoint(INCIDENTS, self.incidents),
            Endpoint(METRICS, self.metrics, {"id": "worker-0"}),
        ]


async def run(server: NatsServer, *words: str) -> Result:
    """The command in a thread: it has an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, cli, words, env={"NATS_URL": server.url})
