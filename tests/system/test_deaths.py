"""Processes are killed under load: every accepted stream ends complete, and with the tokens of an undisturbed run."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from load.chaos.reference import undisturbed
from load.client import Client, open_session, send_open_loop
from load.records import Ask, RequestRecord, find_fault
from load.tally import Tally
from shared.messages.parameters import DType
from shared.world import SystemClock
from tests.made import tiny
from tests.system.conftest import LIVESCALE, System, start, stop

PATIENCE_SECONDS = 40.0
TOKENS = 250
SECONDS = 2.5
KILL_AT = 1.0
BETWEEN_SECONDS = 0.6
SERVICES = 7

Reference = dict[int, list[int]]


@dataclass(frozen=True)
class Streams:
    """What is asked of a model, and what an undisturbed engine answers."""

    model: str
    asks: list[Ask]
    expected: Reference


def make_streams(model: str, dtype: DType, count: int, tokens: int) -> Streams:
    """A third greedy, the others sampled; one after the other over `SECONDS`."""
    chance = random.Random(11)
    asks = [
        Ask(
            index,
            index * SECONDS / count,
            chance.choices(range(1_000), k=chance.choice([1, 7, 60, 200])),
            tokens,
            0.0 if index % 3 == 0 else 0.8,
            index,
        )
        for index in range(count)
    ]
    return Streams(model, asks, asyncio.run(undisturbed(tiny("llama"), dtype, asks)))


@dataclass
class Stage:
    """A system, the streams that it is asked for, and who was there when it was last at rest."""

    system: System
    streams: Streams
    status: dict[str, Any] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)

    def pids(self) -> dict[str, int]:
        return {one["id"]: int(one["pid"]) for one in self.status["processes"] if one["lease"] == "alive"}

    def workers(self, state: str) -> list[str]:
        return [one["id"] for one in self.status["workers"] if one["state"] == state]

    def kill(self, *ids: str) -> None:
        for id in ids:
            self.kill_process(self.pids()[id])

    def kill_process(self, pid: int) -> None:
        self.killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    async def load(self, url: str = "") -> list[RequestRecord]:
        records: list[RequestRecord] = []
        async with open_session(url or self.system.url, "", 60.0) as session:
            client = Client(session, self.streams.model, SystemClock(), Tally())
            await send_open_loop(client, self.streams.asks, records)
        return records

    async def under_load(self, name: str, *victims: int, apart: float = 0.0) -> None:
        """Whoever dies while streams run, nobody notices more than a pause."""
        loading = asyncio.create_task(self.load())
        await asyncio.sleep(KILL_AT)
        for pid in victims:
            self.kill_process(pid)
            await asyncio.sleep(apart)
        self.check(name, await loading)

    def check(self, name: str, records: list[RequestRecord]) -> None:
        assert [fault for record in records if (fault := find_fault(record))] == []
        assert {record.index: record.token_ids for record in records} == self.streams.expected
        pause = max(max([record.ttft or 0.0, *record.gaps]) for record in records)
        print(f"{name}: longest pause {pause:.2f} s")  # noqa: T201 the figure that a reader of this test wants

    def rest(self, serving: int, spare: int) -> None:
        """Wait until everybody who was killed is back. For a while after its death a process keeps its lease."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self.status = self.system.status()
            services = {one["service"] for one in self.status["processes"] if one["lease"] == "alive"}
            counts = len(self.workers("serving")), len(self.workers("spare")), len(services)
            if counts == (serving, spare, SERVICES) and not self.killed & set(self.pids().values()):
                return
            assert time.monotonic() < deadline, f"serving, spare, services: {counts}"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Three workers, two of which serve."""
    streams = make_streams("m", "float32", 12, TOKENS)
    # A port of its own, so that a gateway that is started again is found where it was.
    sizes = ("--workers", "3", "--min-instances", "2", "--max-instances", "2", "--port", str(free_port()))
    running = start(tmp_path_factory.mktemp("deaths"), "--transport", "socket", *sizes)
    try:
        yield Stage(running, streams)
    finally:
        assert stop(running) == 0


@pytest.fixture
def rested(stage: Stage) -> Stage:
    stage.rest(serving=2, spare=1)
    return stage


@contextmanager
def another(system: System, service: str, id: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """One more process of a service, started by hand."""
    words: Sequence[str | Path] = (LIVESCALE, "run", service, "--id", id, *options)
    process = subprocess.Popen(words, env={**os.environ, "NATS_URL": system.nats_url}, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.system
@pytest.mark.parametrize("deaths", [1, 2, 3])
async def test_streams_of_killed_workers_go_on_elsewhere(rested: Stage, deaths: int) -> None:
    """Three: nobody is left, and requests wait for those who are started again."""
    victims = [*rested.workers("serving"), *rested.workers("spare")][:deaths]
    await rested.under_load(f"{deaths} workers killed", *(rested.pids()[id] for id in victims))


@pytest.mark.system
async def test_streams_go_on_while_the_router_is_away(rested: Stage) -> None:
    await rested.under_load("router killed", rested.pids()["router-0"])


@pytest.mark.system
async def test_a_standby_router_takes_over(rested: Stage) -> None:
    with another(rested.system, "router", "router-1"):
        await asyncio.to_thread(wait_for_member, rested.system, "router-1")
        await rested.under_load("router killed, with a standby", rested.pids()["router-0"])


@pytest.mark.system
async def test_streams_and_new_requests_go_on_while_the_other_services_die_in_turn(rested: Stage) -> None:
    victims = [rested.pids()[id] for id in ("registry-0", "planner-0", "monitor-0", "host-0")]
    await rested.under_load("registry, planner, monitor, host killed", *victims, apart=BETWEEN_SECONDS)
    await asyncio.to_thread(rested.rest, 2, 1)


@pytest.mark.system
async def test_streams_go_on_while_the_bus_is_away_and_nobody_dies_of_it(rested: Stage) -> None:
    before = rested.pids()
    await rested.under_load("nats-server killed", nats_pid(rested.system))
    await asyncio.to_thread(rested.rest, 2, 1)
    assert rested.pids() == before


@pytest.mark.system
async def test_a_killed_gateway_s_requests_are_stopped_and_another_serves_meanwhile(rested: Stage) -> None:
    port = free_port()
    with another(rested.system, "gateway", "gateway-1", "--port", str(port)):
        url = f"http://127.0.0.1:{port}"
        before = await aborted(url)
        async with endless(rested.system.url, 4):
            rested.kill("gateway-0")
            killed = time.monotonic()
            loading = asyncio.create_task(rested.load(url))
            while await aborted(url) < before + 4:
                assert time.monotonic() - killed < PATIENCE_SECONDS
                await asyncio.sleep(0.1)
            print(f"gateway killed: its requests ended within {time.monotonic() - killed:.1f} s")  # noqa: T201
        rested.check("gateway killed, at the other", await loading)


@pytest.mark.system
def test_in_bfloat16_too_a_stream_is_continued_bit_for_bit(rested: Stage) -> None:
    """And by the only worker of its model, which its requests wait for."""
    half = Stage(rested.system, make_streams("half", "bfloat16", 6, 120))
    spec = {"name": "half", "path": str(tiny("llama")), "dtype": "bfloat16", "max_instances": 1}
    asyncio.run(register(rested.system.url, spec))
    half.rest(serving=3, spare=0)
    [victim] = [int(one["pid"]) for one in half.status["workers"] if one["model"] == "half"]
    asyncio.run(half.under_load("bfloat16, the only worker killed", victim))


async def register(url: str, spec: dict[str, Any]) -> None:
    async with aiohttp.ClientSession(url) as session, session.post("/admin/v1/models", json=spec) as answer:
        assert answer.status == 201, await answer.text()


def wait_for_member(system: System, id: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while id not in {one["id"] for one in system.status()["processes"] if one["lease"] == "alive"}:
        assert time.monotonic() < deadline, f"{id} did not join"


def nats_pid(system: System) -> int:
    """The supervisor's child."""
    for children in Path(f"/proc/{system.process.pid}/task").glob("*/children"):
        for pid in children.read_text().split():
            if "nats-server" in Path(f"/proc/{pid}/cmdline").read_text():
                return int(pid)
    raise AssertionError("no nats-server is running")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port: int = door.getsockname()[1]
        return port


@asynccontextmanager
async def endless(url: str, count: int) -> AsyncIterator[None]:
    """Long streams that have begun, and whose connection may break."""
    body = {"model": "m", "prompt": [5] * 50, "max_tokens": 3_000, "ignore_eos": True, "stream": True}
    async with aiohttp.ClientSession() as session, AsyncExitStack() as open_streams:
        for _ in range(count):
            answer = await open_streams.enter_async_context(session.post(f"{url}/v1/completions", json=body))
            await answer.content.readline()
        yield


async def aborted(url: str) -> float:
    """Requests that workers ended because nobody wanted them any more. Waits for the gateway to listen."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"{url}/metrics") as response:
                    text = await response.text()
                    break
            except aiohttp.ClientConnectorError:
                assert time.monotonic() < deadline, f"nobody listens on {url}"
                await asyncio.sleep(0.1)
    lines = [
        line for line in text.splitlines() if line.startswith("vllm:request_success_total{") and "cancelled" in line
    ]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
