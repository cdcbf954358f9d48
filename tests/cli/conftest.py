"""Commands are run as on a machine where nothing is set and nothing runs; what they configure is undone."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from livescale.services.cli import connection, status, tap
from livescale.shared.bus.contract import ServiceInfo
from livescale.shared.bus.nats import NatsBus
from tests.cli.answers import Answers
from tests.nats_server import NatsServer


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("NATS_URL", "LIVESCALE_NATS_URL", "LIVESCALE_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LIVESCALE_STATE_DIR", str(tmp_path))
    for module in (connection, tap):  # a busy machine may take longer than a user waits
        monkeypatch.setattr(module, "CONNECT_SECONDS", 60.0)
    monkeypatch.setattr(status, "MEMORY_SECONDS", 60.0)
    monkeypatch.setattr(status, "REPORT_SECONDS", 0.3)  # no router reports, unless a test says so
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer.start(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[NatsBus]:
    bus = await NatsBus.connect(server.url, "default", "test", timeout=60)
    yield bus
    await bus.close()


@pytest.fixture
async def answers(bus: NatsBus) -> Answers:
    answers = Answers()
    await bus.serve(ServiceInfo("registry", "registry-0", "test"), answers.endpoints())
    return answers
