"""A system under load: the streams that it is asked for, processes that are killed meanwhile, and whether all is
right."""

import asyncio
import dataclasses
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from msgspec.structs import replace

from livescale.load.client import LoadClient, open_session, send_open_loop
from livescale.load.engine_alone import undisturbed
from livescale.load.records import Ask, RequestRecord, find_fault
from livescale.load.stats import Tally
from livescale.shared.bus.contract import BusError
from livescale.shared.messages.parameters import DType, Family, KvCacheDType, Layout
from livescale.shared.runtime.clock import SystemClock
from tests.checkpoints import tiny_checkpoint
from tests.system.conftest import LIVESCALE, System

PATIENCE_SECONDS = 120.0
TOGETHER, APART_SECONDS = 3, 0.65  # so many streams begin at once, and others so much later
KILL_AT = 0.75  # a tenth of a second into streams that begin together, at each instance some
SERVICES = 7

Reference = dict[int, list[int]]


@dataclass(frozen=True)
class ExpectedStreams:
    """What is asked of a model, and what an undisturbed engine answers."""

    model: str
    asks: list[Ask]
    expected: Reference


def make_streams(
    model: str,
    dtype: DType,
    count: int,
    tokens: int,
    family: Family = "llama",
    layout: Layout = "panels",
    checkpoint: Path | None = None,
    ranks: int = 1,
    kv_cache_dtype: KvCacheDType = "auto",
) -> ExpectedStreams:
    """A third greedy, the others sampled; some at a time. Of the family's tiny model, or another.

    Matrices are laid out as `livescale up` does on CPUs: by torch's kernels each layout has bits of its own. Instances
    of several `ranks` have bits of their own, too: sums of their parts are rounded otherwise.
    """
    chance = random.Random(11)
    asks = [
        Ask(
            index,
            index // TOGETHER * APART_SECONDS,
            chance.choices(range(1_000), k=chance.choice([1, 7, 60, 200])),
            tokens,
            0.0 if index % 3 == 0 else 0.8,
            index,
        )
        for index in range(count)
    ]
    directory = checkpoint or tiny_checkpoint(family)
    alone = undisturbed(directory, dtype, asks, layout, shards=ranks, kv_cache_dtype=kv_cache_dtype)
    return ExpectedStreams(model, asks, asyncio.run(alone))


@dataclass
class SystemUnderLoad:
    """A system, the streams that it is asked for, and the processes that were there when it was last at rest."""

    system: System
    streams: ExpectedStreams
    status: dict[str, Any] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)

    def pids(self) -> dict[str, int]:
        return {one["id"]: int(one["pid"]) for one in self.status["processes"] if one["lease"] == "alive"}

    def workers(self, state: str) -> list[str]:
        return [one["id"] for one in self.status["workers"] if one["state"] == state]

    def kill(self, *ids: str) -> None:
        for id in ids:
            self.kill_process(self.pids()[id])

    def kill_process(self, pid: int, sign: signal.Signals = signal.SIGKILL) -> None:
        self.killed.add(pid)
        os.kill(pid, sign)

    async def load(self, url: str = "") -> list[RequestRecord]:
        records: list[RequestRecord] = []
        async with open_session(url or self.system.url, "", 60.0) as session:
            client = LoadClient(session, self.streams.model, SystemClock(), Tally())
            await send_open_loop(client, self.streams.asks, records)
        return records

    async def under_load(self, name: str, *victims: int, apart: float = 0.0) -> None:
        """Whichever process dies while streams run, clients notice no more than a pause."""
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
        """Wait until every process that was killed is back. For a while after its death a process keeps its lease."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (counts := self._counts()) != (serving, spare, SERVICES) or self.killed & set(self.pids().values()):
            assert time.monotonic() < deadline, f"serving, spare, services: {counts}"
            time.sleep(0.2)

    def _counts(self) -> tuple[int, int, int] | None:
        """Workers that serve, those that are spare, and services; None while a killed registry starts again."""
        try:
            self.status = self.system.status()
        except BusError:
            return None
        services = {one["service"] for one in self.status["processes"] if one["lease"] == "alive"}
        return len(self.workers("serving")), len(self.workers("spare")), len(services)


@contextmanager
def another(system: System, service: str, id: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """One more process of a service, started by hand."""
    words: Sequence[str | Path] = (LIVESCALE, "run", service, "--id", id, *options)
    process = subprocess.Popen(words, env={**os.environ, "NATS_URL": system.nats_url}, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


async def register(url: str, spec: dict[str, Any]) -> None:
    async with aiohttp.ClientSession(url) as session, session.post("/admin/v1/models", json=spec) as answer:
        assert answer.status == 201, await answer.text()


async def remove(url: str, model: str) -> None:
    """Have a model removed, and wait until it is gone: only then it can be registered again."""
    async with asyncio.timeout(PATIENCE_SECONDS), aiohttp.ClientSession(url) as session:
        async with session.delete(f"/admin/v1/models/{model}") as answer:
            assert answer.status in (200, 202, 204), await answer.text()
        while True:
            async with session.delete(f"/admin/v1/models/{model}") as again:
                if again.status == 404:
                    return
            await asyncio.sleep(0.05)


async def bound(url: str, least: int, most: int) -> None:
    """Give `m`, the tiny model, these bounds: the monitor adds the instances that are missing."""
    spec = {"name": "m", "path": str(tiny_checkpoint("llama")), "min_instances": least, "max_instances": most}
    await register(url, spec)


async def scale_in(url: str) -> None:
    """Have one instance of `m` left, and keep the monitor from adding others."""
    await bound(url, 1, 1)
    body = {"model": "m", "instances": 1}
    async with aiohttp.ClientSession(url) as session, session.post("/admin/v1/scale", json=body) as answer:
        assert answer.status in (200, 202), await answer.text()


def ranks_of(options: Sequence[str]) -> int:
    """How many ranks an instance has in a system with these options."""
    size = "--tensor-parallel-size"
    return int(options[options.index(size) + 1]) if size in options else 1


def at_once(
    model: str,
    dtype: DType,
    count: int = 12,
    tokens: int = 150,
    family: Family = "llama",
    checkpoint: Path | None = None,
    ranks: int = 1,
    kv_cache_dtype: KvCacheDType = "auto",
) -> ExpectedStreams:
    """So many together that none of the instances is left without."""
    streams = make_streams(
        model, dtype, count, tokens, family, checkpoint=checkpoint, ranks=ranks, kv_cache_dtype=kv_cache_dtype
    )
    return dataclasses.replace(streams, asks=[replace(ask, at=0.0) for ask in streams.asks])


async def counted(url: str, begins: str, has: str = "") -> float:
    """Add up the metrics whose lines begin and are so. Waits for the gateway to listen."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"{url}/metrics/all") as response:
                    text = await response.text()
                    break
            except aiohttp.ClientConnectorError:
                assert time.monotonic() < deadline, f"no process listens on {url}"
                await asyncio.sleep(0.1)
    lines = [line for line in text.splitlines() if line.startswith(begins) and has in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
