"""Real workers in one process: real engines and links, the local bus, and a registry that lets everyone in."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from livescale.services.worker.actor import Worker
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kernels.variants import choose_kernels
from livescale.services.worker.engine.kv_store import allocate_kv_memory
from livescale.services.worker.resources import ResourceMaker
from livescale.services.worker.runners import runner_maker
from livescale.services.worker.settings import MIB, WorkerSettings
from livescale.shared.bus.contract import Bus, Context, Endpoint, ServiceInfo, Topic
from livescale.shared.links.contract import Link
from livescale.shared.links.open import open_link
from livescale.shared.memory.devices import CPU
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import Join, Joined, WorkerReport
from livescale.shared.messages.parameters import DType, Manifest
from livescale.shared.messages.requests import Admit, RequestLost, RequestsEnded, Submit, TokenFrame, Tokens
from livescale.shared.messages.transfers import Inflow, InstanceServing, Load, Node, Outflow, Send, Serve, Transfer
from livescale.shared.process.run import World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import RandomIds, SystemClock
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import (
    ADMIT,
    ENDED,
    HEARTBEAT,
    INSTANCE,
    JOIN,
    LOAD,
    MOVED,
    SEND,
    SERVE,
    TOKENS,
    TRANSFER,
)
from livescale.shared.transfer.chunks import Chunk
from livescale.shared.transfer.flow_end import FlowEnd, ModelCopy, TransferFailed
from livescale.shared.transfer.sender import send_chunks
from tests.worker.live.engines import parameters
from tests.worker.requests import random_prompt, submit
from tests.worker.serving import serve

CONTEXT = 256
TICKET = 7
CHUNK_BYTES = 64 * 1024
PATIENCE_SECONDS = 60.0


@dataclass
class Fleet:
    """The planner's and the router's end of the bus, and what the workers said."""

    bus: Bus
    broker: LocalBroker
    link: Link
    manifest: Manifest
    memory: list[memoryview]
    tasks: asyncio.TaskGroup
    reports: dict[str, WorkerReport] = field(default_factory=dict)
    transfers: list[Transfer] = field(default_factory=list)
    rows: dict[str, list[Tokens]] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    moved: list[RequestsMoved] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    instances: list[InstanceServing] = field(default_factory=list)
    addresses: dict[str, bytes] = field(default_factory=dict)
    workers: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    telemetry: dict[str, Telemetry] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def note(self, message: object) -> None:
        """What was said on the bus."""
        match message:
            case WorkerReport():
                self.reports[message.id] = message
            case Transfer():
                self.transfers.append(message)
            case TokenFrame():
                for row in message.rows:
                    self.rows.setdefault(row.request_id, []).append(row)
            case RequestsEnded():
                self.ended += message.request_ids
            case RequestsMoved():
                self.moved.append(message)
            case RequestLost():
                self.lost.append(message.request_id)
            case InstanceServing():
                self.instances.append(message)
        self.changed.set()

    def state(self, worker: str) -> str:
        return self.reports[worker].state if worker in self.reports else "absent"

    def node(self, worker: str) -> Node:
        return Node(id=worker, place="worker", address=self.addresses[worker])

    @property
    def me(self) -> Node:
        return Node(id="source", place="host", address=self.link.address)

    async def start(self, worker: str, **settings: int) -> None:
        """A spare worker, joined."""
        usual = WorkerSettings(id=worker, transport="socket", arena_bytes=16 * MIB, kv_bytes=4 * MIB)
        told = replace(usual, **settings)
        info = ServiceInfo("worker", worker, "worker under test")
        self.telemetry[worker] = Telemetry("worker", worker)
        make_runner = runner_maker(told, CPU)
        world = World(info, "here", self.broker.connect(), SystemClock(), RandomIds(), self.telemetry[worker])
        maker = ResourceMaker(lambda: make_runner(world.clock), lambda: open_link(told))
        run = Worker(world, told, maker).run()
        self.workers[worker] = self.tasks.create_task(run, name=worker)
        await self.until(lambda: self.state(worker) == "spare")

    def command(
        self, worker: str, *inflows: Inflow, plan: str = "plan-1", epoch: int = 1, chunk_bytes: int = CHUNK_BYTES
    ) -> Load:
        return Load(
            plan_id=plan,
            model="m",
            instance=f"m-{worker}",
            role="colocated",
            rank=0,
            manifest=self.manifest,
            inflows=list(inflows),
            chunk_bytes=chunk_bytes,
            max_model_len=CONTEXT,
            epoch=epoch,
        )

    async def load(self, worker: str, upstream: Node, plan: str = "plan-1", ticket: int = TICKET) -> None:
        command = self.command(worker, Inflow(ticket=ticket, upstream=upstream), plan=plan)
        await self.bus.call(LOAD, command, timeout=60, id=worker)

    def feed(self, first: str, ticket: int = TICKET) -> asyncio.Task[None]:
        """Send the parameters to the first worker of a chain, as a host would."""
        end = FlowEnd(ModelCopy("source", CHUNK_BYTES, self.memory), ticket, self.node(first))
        return self.tasks.create_task(self._feed(end))

    async def _feed(self, end: FlowEnd) -> None:
        async def here(chunk: Chunk) -> None: ...

        with suppress(TransferFailed):  # the worker says why
            await send_chunks(self.link, end, here)

    async def send(self, source: str, target: str, plan: str = "plan-1", ticket: int = TICKET) -> None:
        """Have a worker send what it holds, or is receiving."""
        command = Send(
            plan_id=plan,
            version=self.manifest.version,
            outflows=[Outflow(ticket=ticket, downstream=self.node(target))],
            chunk_bytes=CHUNK_BYTES,
            epoch=1,
        )
        await self.bus.call(SEND, command, timeout=60, id=source)

    async def whole(self, *workers: str) -> None:
        await self.until(lambda: set(workers) <= {t.node for t in self.transfers if t.state == "whole"})

    async def serve(self, worker: str) -> None:
        await self.bus.call(SERVE, Serve(plan_id="plan-1", instance=f"m-{worker}", epoch=1), timeout=60, id=worker)

    async def serving(self, worker: str) -> None:
        """It is sent the parameters, and serves."""
        await self.load(worker, self.me)
        self.feed(worker)
        await self.whole(worker)
        await self.serve(worker)

    async def admit(self, worker: str, request: Submit) -> None:
        await self.bus.call(ADMIT, Admit(request=request), timeout=60, id=worker)

    async def finished(self, request_id: str) -> list[int]:
        """The tokens of a request that ended, checked to be in order and without a gap."""
        await self.until(lambda: any(row.finish_reason for row in self.rows.get(request_id, [])))
        tokens: list[int] = []
        for row in self.rows[request_id]:
            assert row.index == len(tokens)
            tokens += row.token_ids
        return tokens


@asynccontextmanager
async def fleet(*workers: str, dtype: DType = "float32", shards: int = 1, **settings: int) -> AsyncIterator[Fleet]:
    """Spare workers that have joined, and the parameters of a tiny model to give them; of one that can be cut, where
    there are to be several shards."""
    manifest, kept = parameters(dtype, shards)
    memory = [memoryview(bytearray(view)) for view in kept]  # a test may damage it
    broker = LocalBroker()
    bus = broker.connect()
    link = await open_link(LinkSettings(transport="socket"))
    try:
        async with asyncio.TaskGroup() as tasks:
            made = Fleet(bus, broker, link, manifest, memory, tasks)
            listening = await _listen(made)
            for worker in workers:
                await made.start(worker, **settings)
            yield made
            for task in [*made.workers.values(), *listening]:
                task.cancel()
            for one in list(broker.buses):
                await one.close()
    finally:
        await link.close()


async def _listen(made: Fleet) -> list[asyncio.Task[None]]:
    async def join(message: Join, context: Context) -> Joined:
        assert message.address is not None
        made.addresses[message.id] = message.address
        return Joined(epoch=1)

    registry = made.broker.connect()
    await registry.serve(ServiceInfo("registry", "registry-0", "lets everyone in"), [Endpoint(JOIN, join)])

    async def follow(topic: Topic[Any]) -> None:
        async for received in await made.bus.subscribe(topic):
            made.note(received.message)

    tasks = [made.tasks.create_task(follow(topic)) for topic in (HEARTBEAT, TRANSFER, TOKENS, ENDED, MOVED, INSTANCE)]
    await asyncio.sleep(0)
    return tasks


def undisturbed(made: Fleet, **requests: int) -> dict[str, list[int]]:
    """What an engine alone makes of prompts of these seeds."""
    engine = TorchEngine(made.manifest, allocate_kv_memory(4 * MIB), 16, CONTEXT, choose_kernels("auto").kernels)
    for index, view in enumerate(made.memory):
        engine.add_block(index, view)

    def alone(name: str, seed: int) -> list[int]:
        return serve(engine, [(0, submit(name, random_prompt(seed, 40), max_tokens=24))]).tokens[name]

    return {name: alone(name, seed) for name, seed in requests.items()}
