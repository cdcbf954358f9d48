"""A real process against a real server: ready, signals, exit codes."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from livescale.services.supervisor.ports import free_port
from livescale.shared.bus.contract import Bus, CallTimeout, ServiceAbsent
from livescale.shared.bus.nats import NatsBus
from livescale.shared.messages.membership import AskMetrics
from livescale.shared.messages.scaling import AskDecisions
from livescale.shared.subjects import DECISIONS, METRICS
from tests.nats_server import NatsServer

pytestmark = pytest.mark.system

PROGRAM = """
import asyncio, sys
from livescale.shared.process.run import World, run_process
from livescale.shared.runtime.settings import ProcessSettings

class Actor:
    def __init__(self, world: World) -> None:
        self.world = world
        world.telemetry.counter("livescale_things_total", "Things")
    async def run(self) -> None:
        {body}
    async def why_not_ready(self) -> str | None:
        return None

settings = ProcessSettings(id="monitor-7", nats_url=sys.argv[1], log_format="json", system_bind=sys.argv[2])
run_process(settings, "monitor", Actor)
"""


@asynccontextmanager
async def process(
    url: str, body: str = "await asyncio.Event().wait()", system_bind: str = "127.0.0.1:0"
) -> AsyncIterator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM.format(body=body), url, system_bind),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def ready(bus: Bus) -> str:
    """Wait until the process answers and its actor is made, and return its metrics."""
    async with asyncio.timeout(60):
        while True:
            with suppress(ServiceAbsent, CallTimeout):
                text = (await bus.call(METRICS, AskMetrics(), timeout=1, id="monitor-7")).text
                if "livescale_things_total" in text:
                    return text
            await asyncio.sleep(0.02)  # another process tells nobody that it is ready


async def said(child: asyncio.subprocess.Process) -> str:
    """Wait for the next line that the process prints."""
    assert child.stdout is not None
    async with asyncio.timeout(60):
        return (await child.stdout.readline()).decode().strip()


async def end(child: asyncio.subprocess.Process) -> tuple[int | None, str, list[dict[str, object]]]:
    """End the process; return exit code, stdout and the events on stderr."""
    async with asyncio.timeout(60):
        out, err = await child.communicate()
    return child.returncode, out.decode(), [json.loads(line) for line in err.splitlines()]


async def test_a_process_answers_for_its_metrics_and_stops_when_asked(tmp_path: Path) -> None:
    async with NatsServer.start(tmp_path) as server, process(server.url) as child:
        bus = await NatsBus.connect(server.url, "default", "test", timeout=60)
        text = await ready(bus)
        assert "livescale_things_total 0.0" in text
        assert "process_resident_memory_bytes" in text
        child.send_signal(signal.SIGTERM)
        code, out, events = await end(child)
        assert (code, out) == (0, "")
        assert {"event": "stopping", "service": "monitor", "id": "monitor-7"}.items() <= events[-1].items()
        await bus.close()


SLOW = """
        from livescale.shared.bus.contract import Endpoint
        from livescale.shared.messages.scaling import Decisions
        from livescale.shared.subjects import DECISIONS
        async def answer(ask, context):
            print("asked", flush=True)
            await asyncio.sleep(0.5)  # so that the process is told to end meanwhile
            return await group.create_task(asyncio.sleep(0, Decisions()))
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(60))  # cancelled
            await self.world.bus.serve(self.world.info, [Endpoint(DECISIONS, answer)])
            print("serves", flush=True)
            await asyncio.Event().wait()
"""


async def test_a_process_that_is_stopped_answers_what_it_was_asked_before_its_actor_ends(tmp_path: Path) -> None:
    async with NatsServer.start(tmp_path) as server, process(server.url, SLOW) as child:
        bus = await NatsBus.connect(server.url, "default", "test", timeout=60)
        assert await said(child) == "serves"
        call = asyncio.create_task(bus.call(DECISIONS, AskDecisions(), timeout=60))
        assert await said(child) == "asked"
        child.send_signal(signal.SIGTERM)
        assert (await call).decisions == []
        assert (await end(child))[0] == 0
        await bus.close()


async def test_an_actor_that_fails_ends_the_process_with_1_and_says_why(tmp_path: Path) -> None:
    async with NatsServer.start(tmp_path) as server, process(server.url, "raise KeyError('lost')") as child:
        code, out, events = await end(child)
        assert (code, out) == (1, "")
        assert events[-1]["event"] == "process_failed"
        assert "KeyError: 'lost'" in str(events[-1]["exception"])


async def test_an_actor_that_ends_as_it_should_is_told_in_a_line(tmp_path: Path) -> None:
    body = "from livescale.shared.process.run import Ends; raise ExceptionGroup('', [Ends('another is in office')])"
    async with NatsServer.start(tmp_path) as server, process(server.url, body) as child:
        code, _, events = await end(child)
        assert code == 1
        last = events[-1]
        assert (last["event"], last["level"], last["reason"]) == ("process_ends", "warning", "another is in office")
        assert "exception" not in last


async def test_a_refusal_to_join_is_told_in_a_line(tmp_path: Path) -> None:
    refusal = "raise ExceptionGroup('tasks', [Refusal(409, 'the id is taken')])"
    body = f"from livescale.shared.bus.contract import Refusal; {refusal}"
    async with NatsServer.start(tmp_path) as server, process(server.url, body) as child:
        code, _, events = await end(child)
        assert (code, events[-1]["event"], events[-1]["error"]) == (1, "process_refused", "the id is taken")


async def test_a_process_waits_for_a_server_that_comes_late(tmp_path: Path) -> None:
    port = free_port()
    async with process(f"nats://127.0.0.1:{port}") as child:
        assert child.stderr is not None
        assert json.loads(await child.stderr.readline())["event"] == "bus_error"
        async with NatsServer.start(tmp_path, port) as server:
            bus = await NatsBus.connect(server.url, "default", "test", timeout=60)
            await ready(bus)
            await bus.close()
            child.send_signal(signal.SIGINT)
            assert (await end(child))[0] == 0


async def test_its_system_port_says_that_it_waits_for_the_server_and_then_that_it_serves(tmp_path: Path) -> None:
    bus, system = free_port(), f"127.0.0.1:{free_port()}"
    async with (
        aiohttp.ClientSession(f"http://{system}") as http,
        process(f"nats://127.0.0.1:{bus}", system_bind=system),
    ):
        waiting = await ask(http, "/ready")
        assert (waiting[0], json.loads(waiting[1])["reason"]) == (503, "the bus is disconnected")
        assert (await ask(http, "/live"))[0] == 200
        assert "livescale_bus_connected 0.0" in (await ask(http, "/metrics"))[1]
        async with NatsServer.start(tmp_path, bus), asyncio.timeout(60):
            while (await ask(http, "/ready"))[0] != 200:  # noqa: ASYNC110  # another process's state
                await asyncio.sleep(0.02)
            metrics = (await ask(http, "/metrics"))[1]
    assert "livescale_bus_connected 1.0" in metrics
    assert "livescale_things_total 0.0" in metrics


async def ask(http: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    """Status and body of an answer, once somebody listens."""
    async with asyncio.timeout(60):
        while True:
            try:
                async with http.get(path) as answer:
                    return answer.status, await answer.text()
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.02)


async def test_a_system_port_that_is_taken_ends_the_process_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with process("nats://127.0.0.1:1", system_bind=address) as child:
            code, _, events = await end(child)
    assert code == 1
    assert str(events[-1]["reason"]).startswith(f"system-bind: cannot listen on {address}: Address already in use")


async def test_a_process_can_be_stopped_while_it_waits_for_the_server(closed_port: int) -> None:
    async with process(f"nats://127.0.0.1:{closed_port}") as child:
        assert child.stderr is not None
        await child.stderr.readline()
        child.send_signal(signal.SIGTERM)
        assert (await end(child))[0] == 0


async def test_a_process_whose_bus_closes_for_good_exits_non_zero(tmp_path: Path) -> None:
    everything = "import gc, nats.aio.client as c; gc.unfreeze(); all = gc.get_objects()"
    client = "next(one for one in all if isinstance(one, c.Client))"
    body = f"{everything}; await {client}.close(); await asyncio.sleep(30)"
    async with NatsServer.start(tmp_path) as server, process(server.url, body) as child:
        code, _, events = await end(child)
        assert code == 1
        assert [event["event"] for event in events] == [
            *("system_port_opened", "bus_disconnected", "bus_closed", "stopping")
        ]


async def test_the_server_dies_with_its_starter(tmp_path: Path) -> None:
    program = (
        "import asyncio, os\nfrom pathlib import Path\nfrom tests.nats_server import NatsServer\n"
        "async def main():\n"
        f"    async with NatsServer.start(Path({str(tmp_path)!r})) as server:\n"
        "        print(server.process.pid, flush=True)\n        await asyncio.sleep(30)\n"
        "asyncio.run(main())"
    )
    starter = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert starter.stdout is not None
    pid = int(await starter.stdout.readline())
    starter.kill()
    await starter.wait()
    for _ in range(500):
        if _ended(pid):
            return
        await asyncio.sleep(0.01)  # the kernel ends it when it will
    pytest.fail("nats-server outlived its starter")


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
