"""Live scaling under virtual time: real workers and engines, and the planner's and the registry's end of the bus."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from services.worker.actor import Worker
from services.worker.settings import MIB, WorkerSettings
from shared.bus.contract import BusError, Context, Endpoint, Refusal, ServiceInfo, Topic
from shared.bus.local import LocalBroker, LocalBus
from shared.messages.live import Help
from shared.messages.membership import Join, Joined, LeaseChanged, WorkerReport
from shared.messages.message import Ack
from shared.messages.parameters import Manifest
from shared.messages.transfers import Abort, Drain, Inflow, LiveMode, Load, Node, Serve
from shared.process import World
from shared.subjects import ABORT, DRAIN, ENDED, HEARTBEAT, HELP, JOIN, LEASE, LOAD, MOVED, SERVE, TOKENS
from shared.telemetry import Telemetry
from shared.transfer.chunks import Chunk
from shared.transfer.part import FlowEnd, Part, TransferFailed
from shared.transfer.send import feed
from shared.world import CountedIds
from tests.transfer.virtual_link import Mail, VirtualLink, new_mail
from tests.worker.live.client import Client
from tests.worker.live.kinds import BLOCKS, CLOCK, CONTEXT, FLOAT32, Kind
from tests.worker.live.timed import Faults, TimedLink

CHUNK_BYTES = 1 << 20
BUS_SECONDS = 0.001
LEASE_SECONDS = 0.4  # from a death until it is known


@dataclass
class Member:
    """A worker under test."""

    worker: Worker
    task: asyncio.Task[None]
    bus: LocalBus
    telemetry: Telemetry


@dataclass
class Stage:
    """`given`: the blocks that each worker was sent. `aborted`: those who are told of no blocks any more."""

    broker: LocalBroker
    bus: LocalBus
    mail: Mail
    tasks: asyncio.TaskGroup
    kind: Kind = FLOAT32
    client: Client = field(init=False)
    faults: Faults = field(default_factory=Faults)
    members: dict[str, Member] = field(default_factory=dict)
    reports: dict[str, WorkerReport] = field(default_factory=dict)
    given: dict[str, list[int]] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    acts: list[asyncio.Task[None]] = field(default_factory=list)
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    tickets: int = 0

    def __post_init__(self) -> None:
        self.client = Client(self.bus, lambda: self.members, self.act)

    @property
    def manifest(self) -> Manifest:
        return self.kind.manifest

    def act(self, work: Coroutine[None, None, None]) -> None:
        """Do this meanwhile."""
        self.acts.append(self.tasks.create_task(work))

    def node(self, worker: str) -> Node:
        return Node(id=worker, place="worker", address=worker.encode())

    def count(self, worker: str, what: str) -> float:
        name = f"livescale_worker_{what}_total"
        metrics = self.members[worker].telemetry.registry.restricted_registry([name]).collect()
        return sum(sample.value for metric in metrics for sample in metric.samples if sample.name == name)

    def state(self, worker: str) -> str:
        return self.reports[worker].state if worker in self.reports else "absent"

    def ready(self, worker: str) -> int:
        """Blocks that it has laid out."""
        holding = self.reports[worker].holding if worker in self.reports else None
        return 0 if holding is None else len(holding.ready)

    async def start(self, worker: str) -> None:
        """A spare worker."""
        told = WorkerSettings(
            id=worker, arena_bytes=16 * MIB, kv_bytes=MIB, max_num_seqs=4, switch_kv=self.kind.switch_kv
        )
        bus, telemetry = self.broker.connect(), Telemetry("worker", worker)
        world = World(ServiceInfo("worker", worker, "under test"), "here", bus, CLOCK, CountedIds(), telemetry)

        async def link() -> TimedLink:
            return TimedLink(self.mail, worker.encode(), self.faults)

        made = Worker(world, told, lambda: self.kind.make_runner(told), link)
        self.members[worker] = Member(made, self.tasks.create_task(made.run(), name=worker), bus, telemetry)
        await self.until(lambda: self.state(worker) == "spare")

    async def load(self, worker: str, blocks: list[int], mode: LiveMode = "off", *, damaged: bool = False) -> None:
        """Send it these blocks too, after those before; `damaged` ones count as not sent."""
        async with self.loading:
            if worker in self.aborted:
                return
            new = [block for block in blocks if block not in self.given.setdefault(worker, [])]
            self.given[worker] += [] if damaged else new
            self.tickets += 1
            inflow = Inflow(ticket=self.tickets, upstream=self.node("host"), blocks=new)
            await self.bus.call(LOAD, self._load(worker, inflow, mode), timeout=5, id=worker)
            await self._feed(worker, self.tickets, self.kind.damaged(new) if damaged else self.kind.memory)

    def _load(self, worker: str, inflow: Inflow, mode: LiveMode) -> Load:
        return Load(
            plan_id=f"plan-{worker}",
            model="m",
            instance=f"m-{worker}",
            role="colocated",
            rank=0,
            manifest=self.manifest,
            inflows=[inflow],
            chunk_bytes=CHUNK_BYTES,
            max_model_len=CONTEXT,
            epoch=1,
            live=mode,
        )

    async def _feed(self, worker: str, ticket: int, memory: list[memoryview]) -> None:
        async def here(chunk: Chunk) -> None: ...

        end = FlowEnd(Part("host", CHUNK_BYTES, memory), ticket, self.node(worker))
        with suppress(TransferFailed):  # the worker is gone, or was told to stop
            await feed(VirtualLink(self.mail, b"host"), end, here)

    async def loaded(self, worker: str) -> None:
        """It has everything, and serves."""
        await self.load(worker, list(range(BLOCKS)))
        await self.until(lambda: self.ready(worker) == BLOCKS)
        await self.serve(worker)

    async def beside(self, source: str, target: str, blocks: list[int]) -> None:
        """The one serves, and the other is live with these blocks."""
        await self.loaded(source)
        await self.load(target, blocks, "zigzag")
        await self.until(lambda: self.state(target) == "live")

    async def finish_loading(self, worker: str) -> None:
        """One that is live gets the rest, and serves."""
        await self.load(worker, list(range(BLOCKS)), "zigzag")
        await self.until(lambda: self.ready(worker) == BLOCKS)
        await self.serve(worker)

    async def serve(self, worker: str) -> None:
        command = Serve(plan_id=f"plan-{worker}", instance=f"m-{worker}", epoch=1)
        await self.told(worker, self.bus.call(SERVE, command, timeout=5, id=worker))

    async def drain(self, worker: str) -> None:
        await self.told(worker, self.bus.call(DRAIN, Drain(instance=f"m-{worker}", epoch=1), timeout=5, id=worker))

    async def abort(self, worker: str) -> None:
        self.aborted.add(worker)
        command = Abort(plan_id=f"plan-{worker}", reason="test")
        await self.told(worker, self.bus.call(ABORT, command, timeout=5, id=worker))

    async def help(self, source: str, *targets: str, plan: str = "plan") -> None:
        nodes = [self.node(target) for target in targets]
        command = Help(plan_id=plan, model="m", version=self.manifest.version, targets=nodes, epoch=1)
        await self.told(source, self.bus.call(HELP, command, timeout=5, id=source))

    async def told(self, worker: str, call: Awaitable[Ack]) -> None:
        """Whoever lives answers, and be it with a refusal."""
        try:
            await call
        except Refusal:
            return
        except BusError:
            if worker in self.members:
                raise

    async def kill(self, worker: str) -> None:
        """From one moment to the next; after a while everybody knows."""
        member = self.members.pop(worker)
        self.faults.gone.add(worker.encode())
        self.reports.pop(worker, None)
        member.bus.hold()
        member.task.cancel()
        await asyncio.wait((member.task,))
        member.bus.forget()
        await member.bus.close()
        await asyncio.sleep(LEASE_SECONDS)
        change = LeaseChanged(service="worker", id=worker, epoch=1, state="dead", reason="killed", at=CLOCK.wall())
        self.bus.publish(LEASE, change, id=worker)
        self.client.lost_at(worker)

    async def outage(self, seconds: float) -> None:
        """The bus is away."""
        self.broker.down()
        await asyncio.sleep(seconds)
        self.broker.up()
        await self.client.ask_again()

    def heard(self, message: object) -> None:
        if isinstance(message, WorkerReport) and message.id in self.members:
            self.reports[message.id] = message
        self.client.heard(message)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            for turn in count():
                if condition():
                    return
                await asyncio.sleep(0.005 if turn < 100 else 0.05)

    async def done(self) -> None:
        """All wishes are over, and nothing is left of any of them anywhere."""
        while pending := [act for act in self.acts if not act.done()]:
            await asyncio.wait(pending)
        await self.until(lambda: all(wish.is_over for wish in self.client.wishes))
        await self.until(lambda: not any(map(self._used, self.members)))
        await self.until(lambda: self.members.keys().isdisjoint(self.client.places.values()))
        self.check_invariants()
        for wish in self.client.wishes:
            wish.check(self.kind.alone(wish.request))

    def _used(self, worker: str) -> int:
        scheduler = self.members[worker].worker._serving.scheduler
        return 0 if scheduler is None else scheduler.load().kv_blocks_used + len(scheduler.running())

    def check_invariants(self) -> None:
        for member in self.members.values():
            deployment, scheduler = member.worker._deployment, member.worker._serving.scheduler
            deployment.lifecycle.check_invariants()
            if scheduler is not None:
                scheduler.check_invariants()
            if deployment.duties.live.target is not None:
                deployment.duties.live.target.queue.check_invariants()


@asynccontextmanager
async def stage(*workers: str, kind: Kind = FLOAT32) -> AsyncIterator[Stage]:
    """Spare workers."""
    broker = LocalBroker(clock=CLOCK, delays=lambda subject: (BUS_SECONDS,))
    bus = broker.connect()

    async def join(message: Join, context: Context) -> Joined:
        return Joined(epoch=1)

    await bus.serve(ServiceInfo("registry", "registry-0", "lets everyone in"), [Endpoint(JOIN, join)])
    async with asyncio.TaskGroup() as tasks:
        made = Stage(broker, bus, new_mail(), tasks, kind)

        async def follow(topic: Topic[Any]) -> None:
            async for received in await bus.subscribe(topic):
                made.heard(received.message)

        listening = [tasks.create_task(follow(topic)) for topic in (HEARTBEAT, TOKENS, ENDED, MOVED)]
        await asyncio.sleep(0)
        for worker in workers:
            await made.start(worker)
        yield made
        for task in [*(member.task for member in made.members.values()), *listening]:
            task.cancel()
        for one in list(broker.buses):
            await one.close()
