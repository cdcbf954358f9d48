"""Live scaling under virtual time: real workers and engines, and the planner's and the registry's end of the bus."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from livescale.services.worker.actor import Worker
from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.resources import ResourceMaker
from livescale.services.worker.settings import MIB, WorkerSettings
from livescale.shared.bus.contract import Ack, BusError, Context, Endpoint, Refusal, ServiceInfo, Topic
from livescale.shared.messages.live import Help
from livescale.shared.messages.membership import Join, Joined, LeaseChanged, Stale, WorkerReport
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.transfers import Abort, Drain, LiveMode, Node, Serve
from livescale.shared.process.run import World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import CountedIds
from livescale.shared.simulation.local_bus import LocalBroker, LocalBus
from livescale.shared.simulation.processes import Process
from livescale.shared.subjects import ABORT, DEATH, DRAIN, ENDED, HEARTBEAT, HELP, JOIN, MOVED, SERVE, STALE, TOKENS
from tests.samples import sample
from tests.shared.transfer.virtual_link import Mail, new_mail
from tests.worker.live.client import Client
from tests.worker.live.engines import BLOCKS, CLOCK, FLOAT32, EngineKind
from tests.worker.live.loads import Loads, node
from tests.worker.live.members import Member, check_invariants, moving, used
from tests.worker.live.timed import Faults, TimedLink
from tests.worker.live.virtual_ranks import Meetings, RankRunner

BUS_SECONDS = 0.001
LATE_SECONDS = (0.003, 0.01, 0.05, 0.3)  # by which some messages may come later
ARENA_BYTES = 16 * MIB
LEASE_SECONDS = 0.4  # from a death until it is known


@dataclass
class WorkerPool:
    """A pool of workers. `aborted` ones are told of no blocks any more; `fenced` ones were declared dead and have not
    joined again."""

    broker: LocalBroker
    bus: LocalBus
    mail: Mail
    tasks: asyncio.TaskGroup
    kind: EngineKind = FLOAT32
    client: Client = field(init=False)
    loads: Loads = field(init=False)
    faults: Faults = field(default_factory=Faults)
    members: dict[str, Member] = field(default_factory=dict)
    reports: dict[str, WorkerReport] = field(default_factory=dict)
    kv_ways: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    aborted: set[str] = field(default_factory=set)
    fenced: set[str] = field(default_factory=set)
    acts: list[asyncio.Task[None]] = field(default_factory=list)
    one_load: asyncio.Lock = field(default_factory=asyncio.Lock)
    meetings: Meetings = field(default_factory=Meetings)

    def __post_init__(self) -> None:
        self.client = Client(self.bus, self.living, self.act)
        self.loads = Loads(self.bus, self.mail, self.kind)

    @property
    def manifest(self) -> Manifest:
        return self.kind.manifest

    def ranks(self, instance: str) -> list[str]:
        """Return the workers of an instance, which has the name of its leading one."""
        return [instance, *(f"{instance}.{rank}" for rank in range(1, self.kind.ranks))]

    def living(self) -> list[str]:
        """The workers that may be asked for something."""
        return [worker for worker in self.members if "." not in worker and worker not in self.fenced]

    def act(self, work: Coroutine[None, None, None]) -> None:
        """Run this beside the test."""
        self.acts.append(self.tasks.create_task(work))

    def node(self, worker: str) -> Node:
        return node(worker)

    def count(self, worker: str, what: str) -> float:
        return sample(self.members[worker].telemetry, f"livescale_worker_{what}_total")

    def state(self, worker: str) -> str:
        return self.reports[worker].state if worker in self.reports else "absent"

    def ready(self, instance: str) -> int:
        """Return the blocks that all ranks of the instance have laid out."""
        return min(map(self._laid_out, self.ranks(instance)))

    def _laid_out(self, worker: str) -> int:
        holding = self.reports[worker].holding if worker in self.reports else None
        return 0 if holding is None else len(holding.ready)

    async def start(self, instance: str) -> None:
        """Start spare workers."""
        for worker in self.ranks(instance):
            await self._start(worker)

    async def _start(self, worker: str) -> None:
        told = WorkerSettings(
            id=worker,
            arena_bytes=max(ARENA_BYTES, self.manifest.size_bytes * 5 // 4),
            kv_bytes=self.kind.kv_bytes,
            max_num_seqs=4,
            switch_kv=self.kind.switch_kv,
            kv_transfer=self.kind.kv_transfer,
        )
        bus, telemetry = self.broker.connect(), Telemetry("worker", worker)
        world = World(ServiceInfo("worker", worker, "under test"), "here", bus, CLOCK, CountedIds(), telemetry)

        async def link() -> TimedLink:
            return TimedLink(self.mail, worker.encode(), self.faults)

        runner = self._runner(told)
        pool = Worker(world, told, ResourceMaker(lambda: runner, link))
        process = Process()
        running = self.tasks.create_task(pool.run(), name=worker, context=process.context())
        self.members[worker] = Member(pool, running, runner, bus, telemetry, process)
        await self.until(lambda: self.state(worker) == "spare")

    def _runner(self, told: WorkerSettings) -> Runner:
        size = self.kind.ranks
        return self.kind.make_runner(told) if size == 1 else RankRunner(told, self.meetings, size)

    async def load(
        self,
        instance: str,
        blocks: list[int],
        mode: LiveMode = "off",
        *,
        damaged: bool = False,
        ranks: Collection[int] = (),
    ) -> None:
        """Send its ranks, or these of them, these blocks too, after those before; `damaged` ones count as not sent."""
        async with self.one_load:
            for rank in ranks or range(self.kind.ranks):
                if instance not in self.aborted:
                    await self.loads.load(self.ranks(instance), rank, blocks, mode, damaged=damaged)

    async def loaded(self, worker: str) -> None:
        """Have a worker load everything, and serve."""
        await self.load(worker, list(range(BLOCKS)))
        await self.until(lambda: self.ready(worker) == BLOCKS)
        await self.serve(worker)

    async def beside(self, source: str, target: str, blocks: list[int]) -> None:
        """Have one worker serve, and another be live with these blocks."""
        await self.loaded(source)
        await self.load(target, blocks, "zigzag")
        await self.until(lambda: self.state(target) == "live")

    async def finish_loading(self, worker: str) -> None:
        """Give a live worker the rest, and have it serve."""
        await self.load(worker, list(range(BLOCKS)), "zigzag")
        await self.until(lambda: self.ready(worker) == BLOCKS)
        await self.serve(worker)

    async def serve(self, instance: str) -> None:
        command = Serve(plan_id=f"plan-{instance}", instance=f"m-{instance}", epoch=1)
        for worker in self.ranks(instance):
            await self.told(worker, self.bus.call(SERVE, command, timeout=5, id=worker))

    async def drain(self, instance: str) -> None:
        command = Drain(instance=f"m-{instance}", epoch=1)
        for worker in reversed(self.ranks(instance)):
            await self.told(worker, self.bus.call(DRAIN, command, timeout=5, id=worker))

    async def abort(self, instance: str) -> None:
        self.aborted.add(instance)
        command = Abort(plan_id=f"plan-{instance}", reason="test")
        for worker in self.ranks(instance):
            await self.told(worker, self.bus.call(ABORT, command, timeout=5, id=worker))

    async def help(self, source: str, *targets: str, plan: str = "plan") -> None:
        nodes = [self.node(target) for target in targets]
        command = Help(plan_id=plan, model="m", version=self.manifest.version, targets=nodes, epoch=1)
        await self.told(source, self.bus.call(HELP, command, timeout=5, id=source))

    async def told(self, worker: str, call: Awaitable[Ack]) -> None:
        """A worker that lives answers, even if with a refusal."""
        try:
            await call
        except Refusal:
            return
        except BusError:
            if worker in self.members:
                raise

    async def kill(self, worker: str) -> None:
        """Kill a worker at once; after a while all others know. Its instance is sent nothing any more."""
        member = self.members.pop(worker)
        self.aborted.add(worker.split(".")[0])
        if isinstance(member.runner, RankRunner):
            member.runner.leave()
        self.faults.gone.add(worker.encode())
        self.reports.pop(worker, None)
        member.bus.hold()
        member.task.cancel()
        await asyncio.wait((member.task,))
        member.bus.forget()
        await member.bus.close()
        await asyncio.sleep(LEASE_SECONDS)
        self._declare_dead(worker)

    async def freeze(self, seconds: float, *workers: str) -> None:
        """Stop these workers, or all there are, and let them go on later."""
        processes = [self.members[worker].process for worker in workers or self.members]
        for process in processes:
            process.stop()
        await asyncio.sleep(seconds)
        for process in processes:
            process.go_on()

    def fence(self, worker: str) -> None:
        """Declare a worker dead that is alive."""
        self.fenced.add(worker)
        self._declare_dead(worker)
        self.bus.publish(STALE, Stale(id=worker, epoch=1), id=worker)

    def _declare_dead(self, worker: str) -> None:
        change = LeaseChanged(service="worker", id=worker, epoch=1, state="dead", reason="silent", at=CLOCK.wall())
        self.bus.publish(DEATH, change, service="worker", id=worker)
        self.client.lost_at(worker)
        self.aborted.add(worker.split(".")[0])

    async def outage(self, seconds: float) -> None:
        """Take the bus away for a while."""
        self.broker.down()
        await asyncio.sleep(seconds)
        self.broker.up()
        await self.client.ask_again()

    def heard(self, message: object) -> None:
        if isinstance(message, WorkerReport) and message.id in self.members:
            self.reports[message.id] = message
            self.kv_ways[message.id].add(message.kv_way)
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
        await self.until(lambda: not any(map(used, self.members.values())))
        await self.until(lambda: self.members.keys().isdisjoint(self.client.places.values()))
        await self.until(lambda: not self.faults.open and not moving())
        check_invariants(self.members.values())
        for wish in self.client.wishes:
            wish.check(self.kind.alone(wish.request), self.kind.told(wish.request))


def late(seed: int) -> Callable[[str], Sequence[float]]:
    """Messages that are overtaken by others, of other senders or on other subjects."""
    chance = Random(seed)
    share, most = chance.random(), chance.choice(LATE_SECONDS)
    return lambda subject: (BUS_SECONDS + (chance.uniform(0.0, most) if chance.random() < share else 0.0),)


@asynccontextmanager
async def worker_pool(*workers: str, kind: EngineKind = FLOAT32) -> AsyncIterator[WorkerPool]:
    """Start a pool of spare workers."""
    broker = LocalBroker(clock=CLOCK, delays=lambda subject: (BUS_SECONDS,))
    bus = broker.connect()

    async def join(message: Join, context: Context) -> Joined:
        pool.fenced.discard(message.id)
        return Joined(epoch=1)

    await bus.serve(ServiceInfo("registry", "registry-0", "lets everyone in"), [Endpoint(JOIN, join)])
    async with asyncio.TaskGroup() as tasks:
        pool = WorkerPool(broker, bus, new_mail(), tasks, kind)

        async def follow(topic: Topic[Any]) -> None:
            async for received in await bus.subscribe(topic):
                pool.heard(received.message)

        listening = [tasks.create_task(follow(topic)) for topic in (HEARTBEAT, TOKENS, ENDED, MOVED)]
        await asyncio.sleep(0)
        for worker in workers:
            await pool.start(worker)
        yield pool
        for task in [*(member.task for member in pool.members.values()), *listening]:
            task.cancel()
        for one in list(broker.buses):
            await one.close()
