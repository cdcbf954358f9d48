"""A running system while its models are scaled: what the bus says of it, and how to hurt its processes."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from livescale.load.records import RequestRecord
from livescale.shared.bus.contract import BusError
from livescale.shared.bus.nats import NatsBus
from livescale.shared.messages.membership import AskMetrics, WorkerReport
from livescale.shared.messages.registry import AskModels, AskSnapshot, Register
from livescale.shared.messages.requests import TokenFrame
from livescale.shared.messages.scaling import Scale, ScaleRecord
from livescale.shared.messages.transfers import BlockReady, Transfer
from livescale.shared.subjects import (
    BLOCK,
    HEARTBEAT,
    METRICS,
    MODELS,
    PLAN,
    REGISTER,
    SCALE,
    SNAPSHOT,
    TOKENS,
    TRANSFER,
)
from tests.system.under_load import SystemUnderLoad

MODEL_BYTES = {"m": 4_350_080, "half": 2_175_040}  # of the tiny model in float32 and in bfloat16, five blocks
WORKERS = 4
PATIENCE_SECONDS = 120.0
ROUNDS = 3  # a worker whose heartbeat is late on a busy machine gets nothing until it comes

LAYERS_RUN = "livescale_worker_live_layers_total"
HANDED_OVER = "livescale_worker_pulled_tasks_total"


@dataclass
class BusWatch:
    """Collects what the bus says of scales."""

    reports: dict[str, WorkerReport] = field(default_factory=dict)
    blocks: dict[str, list[int]] = field(default_factory=dict)
    transfers: list[Transfer] = field(default_factory=list)
    records: dict[str, ScaleRecord] = field(default_factory=dict)
    speakers: set[str] = field(default_factory=set)  # workers that made tokens
    gone: dict[str, int] = field(default_factory=dict)  # epochs at which workers were stopped or killed
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, message: object) -> None:
        match message:
            case WorkerReport() if message.epoch > self.gone.get(message.id, -1):
                self.reports[message.id] = message
            case BlockReady():
                self.blocks.setdefault(message.worker, []).append(message.index)
            case Transfer():
                self.transfers.append(message)
            case ScaleRecord():
                self.records[message.id] = message
            case TokenFrame():
                self.speakers.add(message.worker)
        self.changed.set()

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"never came: {what}; {self.records.values()}"
            self.changed.clear()
            try:
                async with asyncio.timeout(0.5):
                    await self.changed.wait()
            except TimeoutError:
                continue

    def lose(self, worker: str) -> None:
        """Forget a process that was stopped or killed, with its messages that are still on their way."""
        if worker in self.reports:
            self.gone[worker] = self.reports.pop(worker).epoch

    def state(self, worker: str) -> str:
        return self.reports[worker].state if worker in self.reports else "absent"

    def serving(self, model: str | None = None) -> list[str]:
        """The instances of one model, or of all, that serve."""
        serving = (report for report in self.reports.values() if report.state == "serving")
        return sorted(report.id for report in serving if model in (None, report.model))

    def spare(self) -> list[str]:
        return sorted(id for id, report in self.reports.items() if report.state == "spare")

    def received_bytes(self, worker: str) -> int:
        """What came over the link for the plan that this worker completed last."""
        return [event.received_bytes for event in self.transfers if (event.node, event.state) == (worker, "whole")][-1]

    def received_bytes_in_all(self, worker: str) -> int:
        """What came over the link for all plans that this worker completed. A planner that takes over asks again of
        who has all of it, and then nothing comes."""
        return sum(event.received_bytes for event in self.transfers if (event.node, event.state) == (worker, "whole"))

    def whole(self, worker: str) -> bool:
        return any((event.node, event.state) == (worker, "whole") for event in self.transfers)

    def plan_of(self, worker: str) -> ScaleRecord:
        """Return the scale that this worker loads or loaded for."""
        return self.records[self.reports[worker].plan_id or ""]

    def replanned(self, scale: str) -> list[str | None]:
        return [phase.node for phase in self.records[scale].phases if phase.name == "replanned"]

    def forget(self) -> None:
        self.speakers.clear()
        self.blocks.clear()
        self.transfers.clear()


@dataclass
class ScalingSystem:
    """A running system, the model that a test is about, and the means to have instances and to hurt processes."""

    loaded: SystemUnderLoad
    bus: NatsBus
    watch: BusWatch

    @property
    def model(self) -> str:
        return self.loaded.streams.model

    @property
    def model_bytes(self) -> int:
        return MODEL_BYTES[self.model]

    async def have(self, instances: int) -> None:
        """Wait for exactly that many instances, and none of the other model."""
        models = (await self.bus.call(MODELS, AskModels(), timeout=PATIENCE_SECONDS)).models
        for entry in models:
            wanted = instances if entry.spec.name == self.model else 0
            spec = replace(
                entry.spec,
                min_instances=wanted,
                max_instances=max(1, wanted),
                downscale_delay_s=600.0,
                downscale_to_zero_delay_s=600.0,
            )
            await self.bus.call(REGISTER, Register(spec=spec), timeout=PATIENCE_SECONDS)

    def load(self) -> asyncio.Task[list[RequestRecord]]:
        return asyncio.create_task(self.loaded.load())

    async def check(self, name: str, loading: asyncio.Task[list[RequestRecord]]) -> None:
        """Check that the streams that ran meanwhile are right, and others too, of which every serving instance runs
        some."""
        self.loaded.check(f"{name}, meanwhile", await loading)
        for _ in range(ROUNDS):
            self.watch.speakers.clear()
            self.loaded.check(f"{name}, afterwards", await self.load())
            if self.watch.speakers == set(self.watch.serving()):
                return
        pytest.fail(f"{self.watch.serving()} serve, and {sorted(self.watch.speakers)} made tokens")

    async def rest(self, instances: int, *, ranks: int = 1, workers: int = WORKERS) -> None:
        """Scale down to that many instances, of so many `ranks` each, and wait until the others are spare and all are
        there."""
        await self.watch.until(lambda: len(self.watch.reports) == workers, "every worker is heard")
        await self.have(instances)
        shrinking = asyncio.create_task(self._shrink(instances, ranks))
        try:
            await self.watch.until(
                lambda: (
                    self.watch.serving(self.model) == self.watch.serving()
                    and len(self.watch.serving()) == instances * ranks
                    and len(self.watch.spare()) == workers - instances * ranks
                ),
                "rest",
            )
        finally:
            shrinking.cancel()
        self.watch.forget()

    async def _shrink(self, instances: int, ranks: int) -> None:
        """Scale in repeatedly, as instances of an earlier test may only now begin to serve."""
        while True:
            await asyncio.sleep(1.0)  # until the monitor knows
            for model in MODEL_BYTES:
                wanted = instances if model == self.model else 0
                if len(self.watch.serving(model)) > wanted * ranks:
                    with suppress(BusError):
                        await self.bus.call(SCALE, Scale(model=model, instances=wanted), timeout=5)

    async def signal(self, id: str, sign: signal.Signals) -> int:
        members = (await self.bus.call(SNAPSHOT, AskSnapshot(), timeout=PATIENCE_SECONDS)).members
        pid = next(member.pid for member in members if member.id == id)
        os.kill(pid, sign)
        return pid


@asynccontextmanager
async def watching(loaded: SystemUnderLoad) -> AsyncIterator[ScalingSystem]:
    bus = await NatsBus.connect(loaded.system.nats_url, "default", "test", timeout=PATIENCE_SECONDS)
    watch = BusWatch()

    async def follow(topic: Any) -> None:
        async for received in await bus.subscribe(topic):
            watch.note(received.message)

    tasks = [asyncio.create_task(follow(topic)) for topic in (HEARTBEAT, BLOCK, TRANSFER, PLAN, TOKENS)]
    try:
        yield ScalingSystem(loaded, bus, watch)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await bus.close()


async def count(scaling: ScalingSystem, metric: str, *processes: str) -> float:
    """Sum a metric over these processes, or over all workers that are there."""
    total = 0.0
    for id in processes or scaling.watch.reports:
        text = (await scaling.bus.call(METRICS, AskMetrics(), timeout=PATIENCE_SECONDS, id=id)).text
        total += sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(metric))
    return total


def is_busy(report: WorkerReport) -> bool:
    load = report.load
    return load is not None and load.kv_blocks_used + load.running_requests + load.waiting_requests > 0


def targets(scaling: ScalingSystem) -> list[str]:
    """Return the workers that are live and have a layer. All requests that wait there are taken away first, with no
    layer done."""
    return sorted(id for id, report in scaling.watch.reports.items() if report.state == "live" and report.live_layers)


async def check_a_killed_source(scaling: ScalingSystem) -> None:
    """Kill the only source of a live scale once it has handed a request over. All streams go on with their tokens."""
    watch = scaling.watch
    await scaling.rest(1)
    [source] = watch.serving()
    await scaling.have(2)
    await watch.until(lambda: len(targets(scaling)) == 1, "it is live")
    loading = scaling.load()
    await watch.until(lambda: bool(watch.speakers), "a request was handed over")
    await scaling.signal(source, signal.SIGKILL)
    watch.lose(source)
    await watch.until(lambda: len(watch.serving(scaling.model)) == 2, "two serve")
    await scaling.check("source killed", loading)
