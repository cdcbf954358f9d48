"""`livescale status` over a real NATS server, with services that answer as the real ones do."""

import asyncio
import json

import pytest

from livescale.services.cli import status
from livescale.shared.bus.nats import NatsBus
from livescale.shared.messages.membership import (
    QueueLoad,
    RouterReport,
)
from livescale.shared.subjects import HEARTBEAT
from tests.cli.answers import Answers, run
from tests.nats_server import NatsServer


async def test_status_shows_processes_workers_and_the_routers_queues(
    server: NatsServer, bus: NatsBus, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "REPORT_SECONDS", 60.0)  # until the first report

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
        "system": "127.0.0.1:9",
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


async def test_only_when_asked_status_shows_where_the_system_ports_are(server: NatsServer, answers: Answers) -> None:
    assert "127.0.0.1:9" not in (await run(server, "status")).output
    assert "127.0.0.1:9" in (await run(server, "status", "--verbose")).output


async def test_status_tells_of_recent_events(server: NatsServer, answers: Answers) -> None:
    assert "the machine stood still for 2.1 s" in (await run(server, "status")).output
    [event] = json.loads((await run(server, "status", "--json")).output)["events"]
    assert event == {"at": 1e9, "who": "box", "what": "the machine stood still for 2.1 s"}
