"""A cluster in one process under virtual time: the services' own actors, with disks, links and engines that take the
time of real ones. It starts and ends processes, and decides nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from livescale.load.simulate.client import HeadlessGateway
from livescale.load.simulate.disk import ModelledDisk
from livescale.load.simulate.event_log import EventLog
from livescale.load.simulate.usage import CountedFlows
from livescale.services.host.actor import HostService
from livescale.services.host.settings import HostSettings
from livescale.services.monitor.actor import Monitor
from livescale.services.monitor.settings import MonitorSettings
from livescale.services.planner.actor import Planner
from livescale.services.planner.settings import PlannerSettings
from livescale.services.registry.actor import Registry
from livescale.services.registry.settings import RegistrySettings
from livescale.services.router.main import Router
from livescale.services.router.settings import RouterSettings
from livescale.services.worker.actor import Worker
from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.main import runner_maker
from livescale.services.worker.resources import ResourceMaker
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.bus.contract import ServiceInfo
from livescale.shared.links.contract import Link
from livescale.shared.links.shaping import Cluster
from livescale.shared.memory.devices import CPU
from livescale.shared.messages.membership import ServiceName
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.process.run import DESCRIPTIONS, Actor, Build, World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import Clock, CountedIds, LoopClock
from livescale.shared.simulation.fair_links import FairLink, FairShares
from livescale.shared.simulation.local_bus import LocalBroker, LocalBus
from livescale.shared.simulation.modelled_links import ModelledNetwork
from livescale.shared.simulation.sparse_memory import SparseArena
from livescale.shared.simulation.virtual_time import Process, machine_time
from livescale.shared.topology.topology import Topology

EPOCH = 1_000_000.0  # wall time at the start
MESSAGE_SECONDS = 0.00025  # as a bus takes that has little to do
CONTROL: tuple[ServiceName, ...] = ("registry", "router", "planner", "monitor", "gateway")
CONTROL_HOST = "control"  # the machine of the services that have no place in a topology


class ProcessPlace(NamedTuple):
    """What a process is, the machine that it is on, and for hosts and workers their place in the topology."""

    service: ServiceName
    machine: str
    place: str = ""


class VirtualClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is started: a host for each host of the topology, a worker for each GPU, and one of each other service.

    All but the first of the `routers` stand by. `models` are the checkpoints on every disk, by path. `seed` varies what
    messages take, by half of `message_seconds` more or less. On the `wire` each reader decodes them, as on a real bus.
    """

    topology: Topology
    models: Mapping[str, ModelConfig]
    seed: int = 0
    routers: int = 1
    message_seconds: float = MESSAGE_SECONDS
    wire: bool = True
    keep_events: bool = True
    registry: RegistrySettings = RegistrySettings()
    router: RouterSettings = RouterSettings()
    planner: PlannerSettings = PlannerSettings()
    monitor: MonitorSettings = MonitorSettings()
    host: HostSettings = HostSettings()
    worker: WorkerSettings = WorkerSettings()

    def places(self) -> dict[str, ProcessPlace]:
        """All processes by id, in the order in which they are started."""
        found = {f"{service}-0": ProcessPlace(service, CONTROL_HOST) for service in CONTROL}
        found |= {f"router-{number}": ProcessPlace("router", CONTROL_HOST) for number in range(1, self.routers)}
        workers = 0
        for number, host in enumerate(self.topology.hosts):
            found[f"host-{number}"] = ProcessPlace("host", host.id, host.id)
            for gpu in host.gpus:
                found[f"worker-{workers}"] = ProcessPlace("worker", host.id, gpu.id)
                workers += 1
        return found

    def find(self, who: str) -> list[str]:
        """The processes that `who` names: one by its id, all of a service, or all of a machine. Empty for nobody."""
        return [id for id, at in self.places().items() if who in (id, at.service, at.machine)]


@dataclass(frozen=True)
class VirtualProcess:
    """A process that runs. `actor` is what its service made of it; `sleep` stops and continues it."""

    actor: Actor
    bus: LocalBus
    task: asyncio.Task[None]
    sleep: Process


@dataclass
class VirtualCluster:
    """The processes of a cluster, by id, and what joins them.

    A process that raises ends the whole cluster, unless `on_crash` takes its id and the error.
    """

    settings: VirtualClusterSettings
    tasks: asyncio.TaskGroup
    on_crash: Callable[[str, Exception], None] | None = None
    clock: LoopClock = field(default_factory=lambda: LoopClock(EPOCH))
    processes: dict[str, VirtualProcess] = field(default_factory=dict)

    def __post_init__(self) -> None:
        told = self.settings
        chance = Random(told.seed)
        self.broker = LocalBroker(
            self.clock, wire=told.wire, delays=lambda subject: (told.message_seconds * chance.uniform(0.5, 1.5),)
        )
        self.log = EventLog(self.broker, keep=told.keep_events)
        self.operator = self.broker.connect()
        self.network = ModelledNetwork(told.message_seconds)
        self.disks = {
            f"host-{number}": ModelledDisk(told.models, host.disk) for number, host in enumerate(told.topology.hosts)
        }
        self.flows = CountedFlows()
        self._shares = FairShares(self.flows)
        self._ids = CountedIds()
        self._pids = count(1)
        self.places = told.places()

    @property
    def gateway(self) -> HeadlessGateway:
        actor = self.processes["gateway-0"].actor
        assert isinstance(actor, HeadlessGateway)
        return actor

    @property
    def ids(self) -> list[str]:
        """All processes, those that do not run included."""
        return list(self.places)

    @property
    def now(self) -> float:
        """Seconds since the start, whoever asks: a process that was stopped counts fewer."""
        return machine_time()

    def start_all(self) -> None:
        for id in self.ids:
            self.start(id)

    def start(self, id: str) -> None:
        """Start a process that does not run, or no longer does."""
        at = self.places[id]
        bus, info = self.broker.connect(), ServiceInfo(at.service, id, DESCRIPTIONS[at.service])
        world = World(info, at.machine, bus, self.clock, self._ids, Telemetry(at.service, id))
        actor = self._build(at)(world)
        sleep = Process(pid=next(self._pids))
        task = self.tasks.create_task(self._run(id, actor), name=id, context=sleep.context())
        self.processes[id] = VirtualProcess(actor, bus, task, sleep)

    async def _run(self, id: str, actor: Actor) -> None:
        """Run a process to its end. One that ends by itself is told to `on_crash`, as to a supervisor."""
        try:
            await actor.run()
        except Exception as error:
            if self.on_crash is None:
                raise
            self.on_crash(id, error)

    async def stop(self, id: str) -> None:
        """End a process as planned: it takes no more calls, and leaves."""
        process = self.processes.pop(id)
        await process.bus.drain()
        process.task.cancel()
        await asyncio.wait([process.task])
        await process.bus.close()

    async def kill(self, id: str) -> None:
        """End a process at once: nobody hears from it again, but links notice that it is gone."""
        process = self.processes.pop(id)
        process.bus.hold()
        process.sleep.go_on()  # to its end
        process.task.cancel()
        await asyncio.wait([process.task])
        process.bus.forget()
        await process.bus.close()

    async def close(self) -> None:
        """End all processes of the cluster at once, as at the end of a run."""
        for process in self.processes.values():
            process.sleep.go_on()
            process.task.cancel()
        await asyncio.wait([process.task for process in self.processes.values()])
        self.processes.clear()
        for bus in list(self.broker.buses):
            await bus.close()

    def _build(self, at: ProcessPlace) -> Build:
        told = self.settings
        match at.service:
            case "registry":
                return lambda world: Registry(world, told.registry, told.topology)
            case "router":
                return lambda world: Router(world, told.router)
            case "planner":
                return lambda world: Planner(world, told.planner.in_topology(told.topology), told.topology)
            case "monitor":
                return lambda world: Monitor(world, told.monitor)
            case "host":
                return self._host(at.place)
            case "worker":
                return self._worker(at.place)
            case _:
                return HeadlessGateway

    def make_runner(self, told: WorkerSettings) -> Callable[[Clock], Runner]:
        """What makes the engine of a worker. Those who watch engines make ones of their own."""
        return runner_maker(told, CPU)

    def _host(self, place: str) -> Build:
        def build(world: World) -> HostService:
            told = replace(self.settings.host, id=world.info.id, place=place)
            disk = self.disks[world.info.id]
            return HostService(world, told, disk, lambda: self._link(world.info.id, place))

        return build

    def _worker(self, place: str) -> Build:
        def build(world: World) -> Worker:
            told = replace(self.settings.worker, id=world.info.id, place=place, engine="modelled")
            make_runner = self.make_runner(told)
            maker = ResourceMaker(
                lambda: make_runner(world.clock),
                lambda: self._link(world.info.id, place),
                new_arena=lambda size_bytes, device: SparseArena(size_bytes),
            )
            return Worker(world, told, maker)

        return build

    async def _link(self, id: str, place: str) -> Link:
        beneath = self.network.open(id.encode())
        return FairLink(beneath, Cluster(self.settings.topology, place), self._shares)


@asynccontextmanager
async def virtual_cluster(settings: VirtualClusterSettings) -> AsyncIterator[VirtualCluster]:
    """A cluster whose processes are started. Within virtual time."""
    async with asyncio.TaskGroup() as tasks:
        made = VirtualCluster(settings, tasks)
        made.start_all()
        try:
            yield made
        finally:
            await made.close()
