"""Roles on a server of our own: each can do its own work and no other work."""

import ast
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import nats.errors
import pytest

from livescale.services.supervisor.bus_server import start_nats
from livescale.services.supervisor.credentials import EVERYBODY, MEMBERSHIP, ROLES, SUPERVISION, permissions
from livescale.services.supervisor.processes import Supervisor
from livescale.shared import subjects
from livescale.shared.bus import jetstream
from livescale.shared.bus.contract import (
    Ack,
    Call,
    CallTimeout,
    Disconnected,
    Endpoint,
    ServiceAbsent,
    ServiceInfo,
    Topic,
)
from livescale.shared.bus.nats import NatsBus
from livescale.shared.messages.membership import AskMetrics, MetricsText, Stale
from livescale.shared.messages.registry import AskSnapshot, Named, Snapshot
from livescale.shared.messages.transfers import Drain
from livescale.shared.subjects import DRAIN, METRICS, SNAPSHOT, STALE

SERVICES = Path(__file__).parents[2] / "services"


def entries(role: str) -> set[object]:
    row = ROLES[role]
    return {*row.answers, *row.asks, *row.tells, *row.hears, *EVERYBODY.answers, *EVERYBODY.asks, *EVERYBODY.hears}


def imported_subjects(role: str) -> set[str]:
    return {
        alias.name
        for path in (SERVICES / role).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "livescale.shared.subjects"
        for alias in node.names
    }


@pytest.mark.parametrize("role", ROLES)
def test_what_a_service_uses_is_in_its_row(role: str) -> None:
    known = {name for name in vars(subjects) if any(getattr(subjects, name) is entry for entry in entries(role))}
    assert imported_subjects(role) - known == set()


def test_every_subject_has_who_speaks_and_who_hears() -> None:
    for name, subject in vars(subjects).items():
        if isinstance(subject, Call):
            assert any(subject in row.answers for row in (EVERYBODY, *ROLES.values())), name
        elif isinstance(subject, Topic) and subject not in (*MEMBERSHIP, *SUPERVISION):
            assert any(subject in row.tells for row in ROLES.values()), name


@pytest.mark.parametrize("role", ROLES)
def test_no_role_may_do_everything(role: str) -> None:
    allowed = permissions(role, "default")
    for subject in (*allowed["publish"], *allowed["subscribe"]):
        assert subject not in (">", "*", "_INBOX.>", "livescale.>", "livescale.default.>", "$JS.>", "$JS.API.>")
    assert any(subject.startswith("$JS") for subject in allowed["publish"]) == (
        ROLES[role].keeps or ROLES[role].keeps_responses
    )


@pytest.mark.parametrize("role", ROLES)
def test_only_those_keep_state_who_ask_for_it(role: str) -> None:
    asks = any("bus.kv" in path.read_text() for path in (SERVICES / role).rglob("*.py"))
    assert ROLES[role].keeps or not asks


@asynccontextmanager
async def buses(tmp_path: Path, *roles: str) -> AsyncIterator[list[NatsBus]]:
    async with Supervisor(lambda name, line: None) as supervisor:
        urls = await start_nats(supervisor, tmp_path, "default")
        opened = [await NatsBus.connect(urls[role], "default", f"{role}-0", timeout=60) for role in roles]
        try:
            yield opened
        finally:
            await asyncio.gather(*(bus.close() for bus in opened))


@pytest.mark.system
async def test_without_a_credential_the_server_is_closed(tmp_path: Path) -> None:
    async with Supervisor(lambda name, line: None) as supervisor:
        url = (await start_nats(supervisor, tmp_path, "default"))["worker"]
        bare = "nats://" + url.rpartition("@")[2]
        for wrong in (bare, bare.replace("//", "//worker:wrong@"), bare.replace("//", "//nobody:x@")):
            assert "authorization violation" in await refusal(wrong)


async def refusal(url: str) -> str:
    """What the server says to a client with this address, which tries until its time is over. A busy machine needs more
    time than most."""
    for seconds in (0.5, 2.0, 10.0, 60.0):
        with pytest.raises(Disconnected) as refused:
            await NatsBus.connect(url, "default", "worker-0", timeout=seconds)
        if not str(refused.value).endswith(": "):
            break
    return str(refused.value).lower()


@pytest.mark.system
async def test_a_worker_cannot_answer_for_the_registry(tmp_path: Path) -> None:
    async def snapshot(message: AskSnapshot, context: object) -> Snapshot:
        return Snapshot(members=[], workers=[], models=[])

    async with buses(tmp_path, "worker", "gateway", "registry") as [worker, gateway, registry]:
        await worker.serve(ServiceInfo("worker", "worker-0", "false"), [Endpoint(SNAPSHOT, snapshot)])
        with pytest.raises((ServiceAbsent, CallTimeout)):
            await gateway.call(SNAPSHOT, AskSnapshot(), timeout=0.5)
        assert worker.counts["errors"] >= 1
        await registry.serve(ServiceInfo("registry", "registry-0", "true"), [Endpoint(SNAPSHOT, snapshot)])
        assert await gateway.call(SNAPSHOT, AskSnapshot(), timeout=60)


@pytest.mark.system
async def test_a_gateway_cannot_command_a_worker_and_a_worker_cannot_depose_another(tmp_path: Path) -> None:
    drained: list[str] = []

    async def drain(message: Drain, context: object) -> Ack:
        drained.append(message.instance)
        return Ack()

    async with buses(tmp_path, "worker", "gateway", "planner", "registry") as [worker, gateway, planner, registry]:
        await worker.serve(ServiceInfo("worker", "worker-0", "one"), [Endpoint(DRAIN, drain, {"id": "worker-0"})])
        stale = await worker.subscribe(STALE, id="worker-0")
        with pytest.raises(CallTimeout):
            await gateway.call(DRAIN, Drain(instance="false", epoch=1), timeout=0.3, id="worker-0")
        await planner.call(DRAIN, Drain(instance="true", epoch=1), timeout=60, id="worker-0")
        assert drained == ["true"]
        worker.publish(STALE, Stale(id="worker-0", epoch=1), id="worker-0")
        registry.publish(STALE, Stale(id="worker-0", epoch=2), id="worker-0")
        assert (await anext(aiter(stale))).message.epoch == 2


@pytest.mark.system
async def test_a_worker_keeps_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with buses(tmp_path, "registry", "worker") as [registry, worker]:
        await registry.kv.put("models.a", Named(model="a"))
        assert await registry.kv.get("models.a", Named) == Named(model="a")
        assert list(await registry.kv.list("models", Named)) == ["models.a"]
        await registry.kv.delete("models.a")
        await registry.keep_events()
        monkeypatch.setattr(jetstream, "TIMEOUT_SECONDS", 0.5)  # the server answers nothing
        with pytest.raises(Exception, match=r"did not answer|JetStream"):
            await asyncio.wait_for(worker.kv.put("models.a", Named(model="b")), 60)


@pytest.mark.system
async def test_operators_use_the_servers_own_tools(tmp_path: Path) -> None:
    async def metrics(message: AskMetrics, context: object) -> MetricsText:
        return MetricsText(text="x 1")

    async with Supervisor(lambda name, line: None) as supervisor:
        urls = await start_nats(supervisor, tmp_path, "default")
        bus = await NatsBus.connect(urls["host"], "default", "host-0", timeout=60)
        client = await nats.connect(urls["operator"], allow_reconnect=False)
        try:
            await bus.serve(ServiceInfo("host", "host-0", "cache"), [Endpoint(METRICS, metrics, {"id": "host-0"})])
            assert b'"host-0"' in (await client.request("$SRV.PING", timeout=60)).data
            assert b"x 1" in (await client.request("livescale.default.proc.host-0.metrics", b"{}", timeout=60)).data
            assert (await client.jetstream().account_info()).streams == 0
        finally:
            await client.close()
            await bus.close()
