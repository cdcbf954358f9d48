"""A real Prometheus reads a live system: counters are exact, every panel shows something, real faults fire alerts."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from livescale.services.supervisor.ports import free_port
from livescale.shared.bus.nats import NatsBus
from livescale.shared.messages.scaling import AskScales, Scale, ScaleRecord
from livescale.shared.subjects import SCALE, SCALES
from tests.checkpoints import tiny_checkpoint
from tests.nats_server import NatsServer
from tests.observability import names_in, queries, vllm_queries
from tests.system.conftest import System, start, stop
from tests.system.prometheus import PROGRAM, Prometheus, prometheus

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="prometheus is not installed: apt-get install prometheus"),
]

PROCESSES = 10  # registry, planner, monitor, host, two routers, two gateways, and two workers at the least
PATIENCE_SECONDS = 60.0
ALERT_SECONDS = 90.0  # the longest `for` of a rule, and what it takes to notice
NOT_YET = {"LivescaleBusAway", "LivescaleHeldTooLong", "LivescaleModelWithoutCopy"}  # before their faults
INTERVAL = "5m"  # all of the test
LINK_RATE = 3_000_000  # bytes a second, at which the tiny model takes about a second
KV_ROUNDS = 4  # read one after the other, as of a series that has just begun no rate is known
STALL_SECONDS, BETWEEN_SECONDS, STALLS = 1.9, 0.8, 7  # longer than what makes suspect, shorter than what kills


@dataclass(frozen=True)
class Watched:
    """A system, the bus that it stands on, and the Prometheus that reads it."""

    system: System
    bus: NatsBus
    server: NatsServer
    reader: Prometheus
    http: aiohttp.ClientSession

    @property
    def ports(self) -> dict[str, str]:
        """The address of each process's system port, as Prometheus reads it."""
        return {one["labels"]["instance"]: one["targets"][0] for one in self.reader.targets()}

    def pids(self, service: str) -> dict[str, int]:
        processes = self.system.status()["processes"]
        return {one["id"]: one["pid"] for one in processes if one["service"] == service and one["lease"] == "alive"}

    def workers(self, state: str) -> list[str]:
        return [one["id"] for one in self.system.status()["workers"] if one["state"] == state]

    async def ask(self, url: str, tokens: int, prompt: int = 40, model: str = "m") -> Counter[str]:
        """What one answer of a gateway tells in its usage."""
        body = {"model": model, "prompt": list(range(prompt)), "max_tokens": tokens, "ignore_eos": True}
        async with self.http.post(f"{url}/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            usage = (await answer.json())["usage"]
        return Counter(requests=1, prompt=usage["prompt_tokens"], generation=usage["completion_tokens"])

    async def scale(self, instances: int) -> ScaleRecord:
        """Have so many instances; the record of that scale once it has ended."""
        accepted = await self.bus.call(SCALE, Scale(model="m", instances=instances), timeout=PATIENCE_SECONDS)
        return await self.ended(accepted.scale_id)

    async def ended(self, id: str | None) -> ScaleRecord:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                answer = await self.bus.call(SCALES, AskScales(model="m"), timeout=PATIENCE_SECONDS)
                for record in answer.records:
                    if record.id == id and record.state in ("done", "failed"):
                        return record
                await asyncio.sleep(0.1)

    async def rests(self, serving: int, spare: int) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                found = await asyncio.to_thread(lambda: (len(self.workers("serving")), len(self.workers("spare"))))
                if found == (serving, spare):
                    return
                await asyncio.sleep(0.3)


@asynccontextmanager
async def watched(directory: Path) -> AsyncIterator[Watched]:
    port = free_port()
    options = (
        "--workers",
        "3",
        "--gateways",
        "2",
        "--routers",
        "2",
        "--transport",
        "socket",
        "--disaggregation",
        "on",
    )
    async with AsyncExitStack() as cleanup:
        server = await cleanup.enter_async_context(NatsServer.start(directory / "nats", port))
        system = await asyncio.to_thread(
            start, directory, "--nats-url", server.url, "--link-rate", str(LINK_RATE), *options
        )
        cleanup.push_async_callback(asyncio.to_thread, stop, system)
        bus = await NatsBus.connect(server.url, "default", "test", timeout=PATIENCE_SECONDS)
        cleanup.push_async_callback(bus.close)
        env = {**os.environ, "NATS_URL": server.url}
        reader = await cleanup.enter_async_context(prometheus(directory, env))
        http = await cleanup.enter_async_context(aiohttp.ClientSession())
        yield Watched(system, bus, server, reader, http)


async def test_a_live_system_fills_the_board_and_its_faults_fire_alerts(tmp_path: Path) -> None:
    async with watched(tmp_path) as site:
        await site.reader.reads(PROCESSES)
        await check_the_ports(site, 200)
        await load_with_a_scale(site)
        await leave_a_models_roles_to_the_router(site)
        await lose_a_worker_while_it_loads(site)
        await site.reader.fires("LivescaleScaleFailed", ALERT_SECONDS)
        await stall_again_and_again(site)
        await site.reader.fires("LivescaleLeasesFlap", ALERT_SECONDS)
        await check_the_board(site)
        assert not await site.reader.firing() & NOT_YET
        await take_the_bus_away(site, tmp_path)


async def check_the_ports(site: Watched, status: int, reason: str | None = None) -> None:
    """Every process lives, and says alike whether it is ready."""
    for process, address in site.ports.items():
        async with site.http.get(f"http://{address}/live") as answer:
            assert answer.status == 200, process
        async with site.http.get(f"http://{address}/ready") as answer:
            told = await answer.json()
        assert (answer.status, told["id"], told.get("reason")) == (status, process, reason)


async def leave_a_models_roles_to_the_router(site: Watched) -> None:
    """One panel is of such models alone. This one's instance is soon given back."""
    path = str(tiny_checkpoint("llama"))
    model = {"name": "auto", "path": path, "min_instances": 0, "downscale_to_zero_delay_s": 1.0}
    async with site.http.post(f"{site.system.url}/admin/v1/models", json={**model, "disaggregation": "auto"}) as answer:
        assert answer.status == 201, await answer.text()
    await site.ask(site.system.url, 4, model="auto")


async def load_with_a_scale(site: Watched) -> None:
    """Each gateway counts exactly what its clients were told, while an instance is added."""
    before = {url: await counters(site, url) for url in site.system.urls}
    assert len(before) == 2
    told: dict[str, Counter[str]] = {url: Counter() for url in before}

    async def client(url: str, tokens: int) -> None:
        for _ in range(3):
            told[url] += await site.ask(url, tokens)

    async with asyncio.TaskGroup() as clients:
        for number in range(24):
            clients.create_task(client(site.system.urls[number % 2], 50 + number))
        record = await site.scale(2)
    assert record.state == "done", record.outcome
    # A new instance has its first token by now, and of two one prefills and the other decodes.
    for _ in range(KV_ROUNDS):
        for url in site.system.urls:
            told[url] += await site.ask(url, 8)
        await asyncio.sleep(1.0)
    assert {url: await counters(site, url) - before[url] for url in before} == told


async def counters(site: Watched, url: str) -> Counter[str]:
    """Requests and tokens that a gateway's own /metrics tells."""
    async with site.http.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    found: Counter[str] = Counter()
    for line in lines:
        name, value = line.split("{")[0], line.rsplit(" ", 1)[1]
        if name == "livescale_gateway_requests_total" and "/v1/completions" in line:
            found["requests"] += int(float(value))
        elif name in ("livescale_gateway_prompt_tokens_total", "livescale_gateway_generation_tokens_total"):
            found[name.split("_")[2]] += int(float(value))
    return found


async def lose_a_worker_while_it_loads(site: Watched) -> None:
    await site.rests(serving=1, spare=2)  # the monitor has given back what is not needed any more
    spares = [
        (await asyncio.to_thread(site.pids, "worker"))[id] for id in await asyncio.to_thread(site.workers, "spare")
    ]
    for pid in spares:
        os.kill(pid, signal.SIGSTOP)
    accepted = await site.bus.call(SCALE, Scale(model="m", instances=2), timeout=PATIENCE_SECONDS)
    await asyncio.sleep(0.3)
    for pid in spares:
        os.kill(pid, signal.SIGKILL)
    record = await site.ended(accepted.scale_id)
    assert record.state == "failed", record.outcome
    await site.rests(serving=1, spare=2)


async def stall_again_and_again(site: Watched) -> None:
    [pid] = (await asyncio.to_thread(site.pids, "monitor")).values()
    for _ in range(STALLS):
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(STALL_SECONDS)
        os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(BETWEEN_SECONDS)


async def check_the_board(site: Watched) -> None:
    """Every expression parses and has a value that is a number, on our board and on vLLM's."""
    asked = queries(INTERVAL) + vllm_queries(INTERVAL, "m")
    empty = [query for query in asked if not await site.reader.finite(query.expr)]
    assert not empty, empty
    series: list[dict[str, Any]] = await site.reader.query("count by (__name__) ({job='livescale'})")
    present = {sample["metric"]["__name__"] for sample in series}
    assert {name for query in asked for name in names_in(query.expr)} <= present
    [offices] = await site.reader.finite("sum(livescale_router_in_office)")
    assert offices == 1


async def take_the_bus_away(site: Watched, directory: Path) -> None:
    """Every process says that it has no bus, and a request that comes meanwhile is held until it is back."""
    await site.server.stop()
    held = asyncio.create_task(site.ask(site.system.url, 4))
    await site.reader.fires("LivescaleBusAway", ALERT_SECONDS)
    await site.reader.fires("LivescaleHeldTooLong", ALERT_SECONDS)
    await check_the_ports(site, 503, "the bus is disconnected")
    port = int(site.server.url.rsplit(":", 1)[1])
    async with NatsServer.start(directory / "nats", port):
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await held)["generation"] == 4
            while "LivescaleBusAway" in await site.reader.firing():  # noqa: ASYNC110  # the same
                await asyncio.sleep(0.5)
        # The system ends while it has a bus.
        assert await asyncio.to_thread(stop, site.system) == 0
