"""status, scale and why over a real NATS server, with services that answer as the real ones do."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from livescale.services.cli.main import cli
from livescale.services.supervisor.run_files import announce, pointer_path
from livescale.shared.bus.contract import Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.bus.nats import NatsBus
from livescale.shared.messages.membership import (
    AskIncidents,
    AskMetrics,
    AskModels,
    AskSnapshot,
    Incident,
    IncidentList,
    Member,
    MetricsText,
    ModelEntry,
    ModelList,
    QueueLoad,
    RouterReport,
    Snapshot,
    WorkerReport,
)
from livescale.shared.messages.parameters import ModelSpec
from livescale.shared.messages.scaling import (
    AskDecisions,
    AskScales,
    Decision,
    Decisions,
    Scale,
    ScaleAccepted,
    ScaleRecord,
    ScaleRecords,
)
from livescale.shared.subjects import DECISIONS, HEARTBEAT, INCIDENTS, METRICS, MODELS, SCALE, SCALES, SNAPSHOT
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


class Answers:
    """What registry, planner and monitor answer."""

    scaled_to: int | None = None
    polls: int = 0
    outcome: str = "done"

    async def snapshot(self, message: AskSnapshot, context: Context) -> Snapshot:
        return Snapshot(
            members=[Member(service="worker", id="worker-0", pid=4711, host="h", epoch=1, lease="alive")],
            workers=[WorkerReport(id="worker-0", epoch=1, state="spare")],
        )

    async def scale(self, message: Scale, context: Context) -> ScaleAccepted:
        if message.model != "tiny":
            raise Refusal(404, f"no model {message.model!r} is registered")
        self.scaled_to = message.instances
        return ScaleAccepted(scale_id="scale-1", actual=1, target=message.instances, reason="one spare worker")

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


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer.start(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[NatsBus]:
    bus = await NatsBus.connect(server.url, "default", "test")
    yield bus
    await bus.close()


@pytest.fixture
async def answers(bus: NatsBus) -> Answers:
    answers = Answers()
    endpoints = [
        Endpoint(SNAPSHOT, answers.snapshot),
        Endpoint(SCALE, answers.scale),
        Endpoint(SCALES, answers.scales),
        Endpoint(DECISIONS, answers.decisions),
        Endpoint(MODELS, answers.models),
        Endpoint(INCIDENTS, answers.incidents),
        Endpoint(METRICS, answers.metrics, {"id": "worker-0"}),
    ]
    await bus.serve(ServiceInfo("registry", "registry-0", "test"), endpoints)
    return answers


async def run(server: NatsServer, *words: str) -> Result:
    """The command in a thread: it has an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, cli, words, env={"NATS_URL": server.url})


async def test_status_shows_processes_workers_and_the_routers_queues(
    server: NatsServer, bus: NatsBus, answers: Answers
) -> None:
    async def report() -> None:
        load = QueueLoad(model="tiny", waiting_requests=2, waiting_tokens=9, oldest_seconds=0.1, running=1)
        while True:
            bus.publish(HEARTBEAT, RouterReport(id="r", epoch=1, queues=[load]), service="router", id="r")
            await asyncio.sleep(0.05)

    reporting = asyncio.create_task(report())
    result = await run(server, "status", "--json")
    reporting.cancel()
    found = json.loads(result.output)
    [process] = found["processes"]
    assert process == {
        **{"service": "worker", "id": "worker-0", "pid": 4711, "host": "h", "lease": "alive"},
        "memory_bytes": 345_000_000,
    }
    assert found["workers"][0]["state"] == "spare"
    assert found["queues"][0]["waiting_requests"] == 2
    assert found["queues"][0]["scaling"] == "hold at 0: 1 wanted, no spare worker fits"


async def test_status_in_tables_says_what_is_unknown(server: NatsServer, answers: Answers) -> None:
    output = (await run(server, "status")).output
    assert "4711" in output
    assert "345 MB" in output
    assert "Instances: none" in output
    assert "Queues: unknown, no router reported" in output


async def test_status_tells_of_recent_events(server: NatsServer, answers: Answers) -> None:
    assert "the machine stood still for 2.1 s" in (await run(server, "status")).output
    [event] = json.loads((await run(server, "status", "--json")).output)["events"]
    assert event == {"at": 1e9, "who": "box", "what": "the machine stood still for 2.1 s"}


async def test_scale_prints_the_answer_and_the_same_for_the_nats_cli(server: NatsServer, answers: Answers) -> None:
    result = await run(server, "scale", "tiny", "--instances", "2")
    assert result.exit_code == 0
    assert answers.scaled_to == 2
    assert "tiny: 1 -> 2 instances: one spare worker" in result.output
    assert """req livescale.default.svc.planner.scale '{"model": "tiny", "instances": 2}'""" in result.output


async def test_scale_waits_for_the_end_of_the_scale(server: NatsServer, answers: Answers) -> None:
    result = await run(server, "scale", "tiny", "--instances", "2", "--wait")
    assert result.exit_code == 0
    assert "scale-1 done: told" in result.output
    assert answers.polls == 3


async def test_a_scale_that_failed_is_an_error(server: NatsServer, answers: Answers) -> None:
    answers.outcome = "failed"
    result = await run(server, "scale", "tiny", "--instances", "2", "--wait")
    assert result.exit_code == 1
    assert "livescale why tiny" in result.output


async def test_waiting_has_an_end(server: NatsServer, answers: Answers) -> None:
    result = await run(server, "scale", "tiny", "--instances", "2", "--wait", "--timeout", "0.1")
    assert result.exit_code == 1
    assert "goes on after 0.1 s" in result.output


async def test_a_refusal_is_one_line(server: NatsServer, answers: Answers) -> None:
    result = await run(server, "scale", "huge", "--instances", "2")
    assert result.exit_code == 1
    assert result.output == "Error: no model 'huge' is registered\n"


async def test_why_tells_in_words_and_in_json(server: NatsServer, answers: Answers) -> None:
    assert "by operator" in (await run(server, "why", "tiny")).output
    found = json.loads((await run(server, "why", "tiny", "--json")).output)
    assert found["scales"][0]["id"] == "scale-1"
    assert found["decisions"] == []


async def test_why_refuses_a_model_that_nobody_knows(server: NatsServer, answers: Answers) -> None:
    result = await run(server, "why", "tinny")
    assert result.exit_code == 1
    assert result.output == "Error: no model 'tinny' is registered; there are tiny\n"


async def test_a_service_that_does_not_run_is_named(server: NatsServer) -> None:
    result = await run(server, "status")
    assert result.exit_code == 1
    assert "svc.registry.snapshot" in result.output
    assert "that service does not run" in result.output


async def test_the_system_of_this_machine_is_found_without_flags(server: NatsServer, answers: Answers) -> None:
    with announce(pointer_path(), url="", nats_url=server.url, namespace="default"):
        result = await asyncio.to_thread(CliRunner().invoke, cli, ["status", "--json"])
    assert json.loads(result.output)["processes"][0]["id"] == "worker-0"


def test_without_a_server_it_is_told_where_one_was_looked_for(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["status"])
    assert result.exit_code == 1
    assert f"{tmp_path / 'run.json'} names no `livescale up` that runs, and NATS_URL is not set" in result.output


def test_without_a_server_the_remedy_is_told() -> None:
    result = CliRunner().invoke(cli, ["status", "--nats-url", "nats://127.0.0.1:9"])
    assert result.exit_code == 1
    assert "start `livescale up`, or name a server with --nats-url" in result.output
