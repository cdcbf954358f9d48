"""A cluster in one process under virtual time: the services' own actors, with disks, links and engines that take the
time of real ones. It starts and ends processes, and decides nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random

from livescale.load.simulate.builds import Builds
from livescale.load.simulate.client import HeadlessGateway
from livescale.load.simulate.cluster_settings import ProcessPlace, VirtualClusterSettings
from livescale.load.simulate.disk import ModelledDisk
from livescale.load.simulate.event_log import EventLog
from livescale.load.simulate.links import VirtualLinks
from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.runners import runner_maker
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.bus.contract import ServiceInfo
from livescale.shared.memory.devices import CPU
from livescale.shared.process.run import DESCRIPTIONS, Actor, Build, World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import Clock, CountedIds
from livescale.shared.simulation.local_bus import LocalBroker, LocalBus
from livescale.shared.simulation.processes import Process
from livescale.shared.simulation.sparse_memory import SparseKv
from livescale.shared.simulation.virtual_clock import VirtualClock, machine_time

EPOCH = 1_000_000.0  # wall time at the start


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
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(EPOCH))
    processes: dict[str, VirtualProcess] = field(default_factory=dict)

    def __post_init__(self) -> None:
        told = self.settings
        draw, usual = Random(told.seed).random, told.message_seconds
        # By a half earlier or later. Every message is drawn for each of its listeners: `uniform` would be another call.
        self.broker = LocalBroker(self.clock, wire=told.wire, delays=lambda subject: (usual * (0.5 + draw()),))
        self.log = EventLog(self.broker, keep=told.keep_events)
        self.operator = self.broker.connect()
        self.disks = {
            f"host-{number}": ModelledDisk(told.models, host.disk) for number, host in enumerate(told.topology.hosts)
        }
        self.links = VirtualLinks(told.topology, told.message_seconds)
        self._ids = CountedIds()
        self._pids = count(1)
        self.places = told.places()

    @property
    def gateway(self) -> HeadlessGateway:
        """The first gateway, which clients ask where there are no others."""
        return self.find_gateway("gateway-0")

    def find_gateway(self, id: str) -> HeadlessGateway:
        """A gateway that runs. Raises KeyError for one that does not."""
        actor = self.processes[id].actor
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
        actor = self.build(at)(world)
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

    def build(self, at: ProcessPlace) -> Build:
        """Return what makes the actor of a process. A cluster that compares actors has others of its own."""
        return Builds(self.settings, self.disks, self.links.open, self.make_runner).of(at)

    def make_runner(self, told: WorkerSettings) -> Callable[[Clock], Runner]:
        """Return what makes the engine of a worker. A cluster that watches engines makes ones of its own."""
        return runner_maker(told, CPU, new_memory=SparseKv.of)


@asynccontextmanager
async def virtual_cluster(
    settings: VirtualClusterSettings, kind: type[VirtualCluster] = VirtualCluster
) -> AsyncIterator[VirtualCluster]:
    """A cluster of this kind whose processes are started. Within virtual time."""
    async with asyncio.TaskGroup() as tasks:
        made = kind(settings, tasks)
        made.start_all()
        try:
            yield made
        finally:
            await made.close()
