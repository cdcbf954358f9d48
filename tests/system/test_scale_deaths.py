"""Processes that die or freeze while parameters move: real processes, real signals, links slow enough to be hit.

Streams run meanwhile, and more of them once the new instances serve: all with the tokens of an undisturbed run.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from dataclasses import replace as replace_field
from typing import Any

import pytest
from msgspec.structs import replace

from load.records import RequestRecord
from shared.bus.contract import BusError
from shared.bus.nats import NatsBus
from shared.messages.membership import AskModels, AskSnapshot, Register, WorkerReport
from shared.messages.parameters import DType
from shared.messages.requests import TokenFrame
from shared.messages.scaling import BlockReady, Scale, ScaleRecord, Transfer
from shared.subjects import BLOCK, HEARTBEAT, MODELS, PLAN, REGISTER, SCALE, SNAPSHOT, TOKENS, TRANSFER
from tests.made import tiny
from tests.system.conftest import start, stop
from tests.system.stage import Stage, Streams, make_streams, register

MODEL_BYTES = {"m": 4_350_080, "half": 2_175_040}  # of the tiny model in float32 and in bfloat16, five blocks
RATE = 2e6  # bytes a second: one and two seconds for a whole model
STREAMS, TOKENS_EACH = 12, 150
WORKERS = 4
PATIENCE_SECONDS = 40.0


@dataclass
class Watch:
    """What the bus says of scales, as it comes."""

    reports: dict[str, WorkerReport] = field(default_factory=dict)
    blocks: dict[str, list[int]] = field(default_factory=dict)
    transfers: list[Transfer] = field(default_factory=list)
    records: dict[str, ScaleRecord] = field(default_factory=dict)
    speakers: set[str] = field(default_factory=set)  # workers that made tokens
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, message: object) -> None:
        match message:
            case WorkerReport():
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

    def state(self, worker: str) -> str:
        return self.reports[worker].state if worker in self.reports else "absent"

    def serving(self, model: str | None = None) -> list[str]:
        """Of one model, or of all."""
        serving = (report for report in self.reports.values() if report.state == "serving")
        return sorted(report.id for report in serving if model in (None, report.model))

    def spare(self) -> list[str]:
        return sorted(id for id, report in self.reports.items() if report.state == "spare")

    def received_bytes(self, worker: str) -> int:
        """What came over the link for the plan that this worker completed last."""
        return [event.received_bytes for event in self.transfers if (event.node, event.state) == (worker, "whole")][-1]

    def whole(self, worker: str) -> bool:
        return any((event.node, event.state) == (worker, "whole") for event in self.transfers)

    def plan_of(self, worker: str) -> ScaleRecord:
        """The scale that this worker loads or loaded for."""
        return self.records[self.reports[worker].plan_id or ""]

    def replanned(self, scale: str) -> list[str | None]:
        return [phase.node for phase in self.records[scale].phases if phase.name == "replanned"]

    def forget(self) -> None:
        self.speakers.clear()
        self.blocks.clear()
        self.transfers.clear()


@dataclass
class Site:
    """A running system, the model that a test is about, and the means to have instances and to hurt processes."""

    stage: Stage
    bus: NatsBus
    watch: Watch

    @property
    def model(self) -> str:
        return self.stage.streams.model

    @property
    def model_bytes(self) -> int:
        return MODEL_BYTES[self.model]

    async def have(self, instances: int) -> None:
        """That many, no fewer, and none of the other model."""
        models = (await self.bus.call(MODELS, AskModels(), timeout=5)).models
        for entry in models:
            wanted = instances if entry.spec.name == self.model else 0
            spec = replace(
                entry.spec,
                min_instances=wanted,
                max_instances=max(1, wanted),
                downscale_delay_s=600.0,
                downscale_to_zero_delay_s=600.0,
            )
            await self.bus.call(REGISTER, Register(spec=spec), timeout=5)

    def load(self) -> asyncio.Task[list[RequestRecord]]:
        return asyncio.create_task(self.stage.load())

    async def check(self, name: str, loading: asyncio.Task[list[RequestRecord]]) -> None:
        """The streams that ran meanwhile are right, and so are others, of which everyone who serves makes some."""
        self.stage.check(f"{name}, meanwhile", await loading)
        self.watch.speakers.clear()
        self.stage.check(f"{name}, afterwards", await self.load())
        assert self.watch.speakers == set(self.watch.serving())

    async def rest(self, instances: int) -> None:
        """Down to that many, the others spare, and everybody there."""
        await self.watch.until(lambda: len(self.watch.reports) == WORKERS, "every worker is heard")
        await self.have(instances)
        shrinking = asyncio.create_task(self._shrink(instances))
        try:
            await self.watch.until(
                lambda: (
                    self.watch.serving(self.model) == self.watch.serving()
                    and len(self.watch.serving()) == instances
                    and len(self.watch.spare()) == WORKERS - instances
                ),
                "rest",
            )
        finally:
            shrinking.cancel()
        self.watch.forget()

    async def _shrink(self, instances: int) -> None:
        """Again and again: what an earlier test asked for may only now begin to serve."""
        while True:
            await asyncio.sleep(1.0)  # until the monitor knows
            for model in MODEL_BYTES:
                wanted = instances if model == self.model else 0
                if len(self.watch.serving(model)) > wanted:
                    with suppress(BusError):
                        await self.bus.call(SCALE, Scale(model=model, instances=wanted), timeout=5)

    async def signal(self, id: str, sign: signal.Signals) -> int:
        members = (await self.bus.call(SNAPSHOT, AskSnapshot(), timeout=5)).members
        pid = next(member.pid for member in members if member.id == id)
        os.kill(pid, sign)
        return pid


@asynccontextmanager
async def watching(stage: Stage) -> AsyncIterator[Site]:
    bus = await NatsBus.connect(stage.system.nats_url, "default", "test")
    watch = Watch()

    async def follow(topic: Any) -> None:
        async for received in await bus.subscribe(topic):
            watch.note(received.message)

    tasks = [asyncio.create_task(follow(topic)) for topic in (HEARTBEAT, BLOCK, TRANSFER, PLAN, TOKENS)]
    try:
        yield Site(stage, bus, watch)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await bus.close()


def at_once(model: str, dtype: DType) -> Streams:
    """So many together that none of the instances is left without."""
    streams = make_streams(model, dtype, STREAMS, TOKENS_EACH)
    return replace_field(streams, asks=[replace(ask, at=0.0) for ask in streams.asks])


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Stage]]:
    """Four workers behind slow links, and a model in each of two formats."""
    streams = [at_once("m", "float32"), at_once("half", "bfloat16")]
    system = start(tmp_path_factory.mktemp("slow"), "--workers", str(WORKERS), "--link-rate", str(RATE))
    try:
        spec = {"name": "half", "path": str(tiny("llama")), "dtype": "bfloat16", "min_instances": 0}
        asyncio.run(register(system.url, spec))
        yield {one.model: Stage(system, one) for one in streams}
    finally:
        stop(system)


@pytest.fixture
def slow(stages: dict[str, Stage]) -> Stage:
    return stages["m"]


@pytest.fixture
def half(stages: dict[str, Stage]) -> Stage:
    return stages["half"]


def chain_of(record: ScaleRecord) -> list[str]:
    assert record.plan is not None
    return record.plan.chains[0].targets


@pytest.mark.system
async def test_a_hop_killed_in_the_middle_of_a_chain_is_bridged_and_nothing_is_sent_twice(slow: Stage) -> None:
    async with watching(slow) as site:
        watch = site.watch
        await site.rest(1)
        await site.have(4)
        await watch.until(lambda: len(watch.blocks) == 3, "every target has a block")
        record = watch.plan_of(next(iter(watch.blocks)))
        first, hop, last = chain_of(record)
        loading = site.load()
        await site.signal(hop, signal.SIGKILL)
        await watch.until(lambda: watch.whole(first) and watch.whole(last), "the others are whole")
        watch.reports.pop(hop, None)  # its last words
        assert watch.replanned(record.id) == [last]
        assert watch.received_bytes(first) == watch.received_bytes(last) == site.model_bytes
        await watch.until(lambda: len(watch.serving()) == 4, "the killed one is replaced")
        await site.check("hop killed", loading)


@pytest.mark.system
async def test_a_source_killed_in_mid_transfer_is_replaced_and_nothing_is_sent_twice(half: Stage) -> None:
    async with watching(half) as site:
        watch = site.watch
        await site.rest(1)
        [source] = watch.serving()
        await site.have(2)
        await watch.until(lambda: len(watch.blocks) == 1, "the target has a block")
        [target] = watch.blocks
        record = watch.plan_of(target)
        assert record.plan is not None
        assert record.plan.chains[0].source == source
        loading = site.load()
        await site.signal(source, signal.SIGKILL)
        await watch.until(lambda: watch.whole(target), "the target is whole")
        watch.reports.pop(source, None)  # its last words
        assert watch.replanned(record.id) == [target]
        assert watch.received_bytes(target) == site.model_bytes
        await watch.until(lambda: len(watch.serving()) == 2, "two serve")
        await site.check("source killed", loading)


@pytest.mark.system
@pytest.mark.parametrize(("whom", "model"), [("target", "half"), ("source", "m")])
async def test_a_worker_stopped_in_mid_transfer_is_replaced_and_wakes_as_a_spare(
    stages: dict[str, Stage], whom: str, model: str
) -> None:
    async with watching(stages[model]) as site:
        watch = site.watch
        await site.rest(1)
        [source] = watch.serving()
        await site.have(2)
        await watch.until(lambda: len(watch.blocks) == 1, "the target has a block")
        [target] = watch.blocks
        victim = target if whom == "target" else source
        epoch = watch.reports[victim].epoch
        loading = site.load()
        pid = await site.signal(victim, signal.SIGSTOP)
        try:
            del watch.reports[victim]  # of a stopped process nothing more is heard
            await watch.until(lambda: len(watch.serving()) == 2, "others serve instead")
            await site.check(f"{whom} stopped", loading)
        finally:
            os.kill(pid, signal.SIGCONT)
        await watch.until(lambda: watch.state(victim) == "spare" and watch.reports[victim].epoch > epoch, "it is spare")
        assert watch.reports[victim].flows_out == 0
        if whom == "source":
            assert watch.received_bytes(target) == site.model_bytes
        await site.have(4)
        await watch.until(lambda: len(watch.serving()) == 4, "it can be used again")


@pytest.mark.system
async def test_a_planner_killed_in_mid_scale_goes_on_with_it_when_it_is_back(slow: Stage) -> None:
    async with watching(slow) as site:
        watch = site.watch
        await site.rest(1)
        await site.have(3)
        await watch.until(lambda: len(watch.blocks) == 2, "every target has a block")
        targets = list(watch.blocks)
        scale = watch.plan_of(targets[0]).id
        loading = site.load()
        await site.signal("planner-0", signal.SIGKILL)
        await watch.until(lambda: watch.records[scale].state == "done", "the scale is done")
        assert len(watch.serving()) == 3
        assert [watch.received_bytes(target) for target in targets] == [site.model_bytes, site.model_bytes]
        await site.check("planner killed", loading)
        told = await asyncio.to_thread(slow.system.command, "why", "m")
        assert f"{scale} done: 2 new instances serve" in told.stdout


@pytest.mark.system
async def test_a_host_killed_while_it_sends_reads_again_and_sends_what_is_missing(half: Stage) -> None:
    async with watching(half) as site:
        watch = site.watch
        await site.rest(0)
        await site.have(1)
        await watch.until(lambda: len(watch.blocks) == 1, "the target has a block")
        [target] = watch.blocks
        scale = watch.plan_of(target).id
        loading = site.load()
        await site.signal("host-0", signal.SIGKILL)
        await watch.until(lambda: watch.records[scale].state == "done", "the scale is done")
        assert watch.received_bytes(target) == site.model_bytes
        assert watch.replanned(scale)
        assert watch.serving() == [target]
        await site.check("host killed", loading)
