"""What the processes of a cluster under virtual time run: the services' own actors, with modelled disks, links and
engines."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from livescale.load.simulate.client import HeadlessGateway
from livescale.load.simulate.cluster_settings import ProcessPlace, VirtualClusterSettings
from livescale.load.simulate.disk import ModelledDisk
from livescale.services.host.actor import HostService
from livescale.services.monitor.actor import Monitor
from livescale.services.planner.main import make_planner
from livescale.services.registry.actor import Registry
from livescale.services.registry.join_checks import JoinRules
from livescale.services.router.main import Router
from livescale.services.worker.actor import Worker
from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.resources import ResourceMaker
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.links.contract import Link
from livescale.shared.process.run import Build, World
from livescale.shared.runtime.clock import Clock
from livescale.shared.simulation.sparse_memory import SparseArena, SparseBytes


@dataclass(frozen=True)
class Builds:
    """Makes the actor of each process. `disks` are those of hosts by id; `open_link` takes the id of a process and its
    place."""

    settings: VirtualClusterSettings
    disks: Mapping[str, ModelledDisk]
    open_link: Callable[[str, str], Awaitable[Link]]
    make_runner: Callable[[WorkerSettings], Callable[[Clock], Runner]]

    def of(self, at: ProcessPlace) -> Build:
        """Return what makes the actor of the process that is there."""
        told = self.settings
        match at.service:
            case "registry":
                return lambda world: Registry(world, told.registry, JoinRules(told.topology))
            case "router":
                return lambda world: Router(world, told.router)
            case "planner":
                return lambda world: make_planner(world, told.planner.in_topology(told.topology), told.topology)
            case "monitor":
                return lambda world: Monitor(world, told.monitor)
            case "host":
                return self._host(at.place)
            case "worker":
                return self._worker(at.place)
            case _:
                return HeadlessGateway

    def _host(self, place: str) -> Build:
        def build(world: World) -> HostService:
            told = replace(self.settings.host, id=world.info.id, place=place)
            disk = self.disks[world.info.id]
            return HostService(world, told, disk, lambda: self.open_link(world.info.id, place))

        return build

    def _worker(self, place: str) -> Build:
        def build(world: World) -> Worker:
            told = replace(self.settings.worker, id=world.info.id, place=place, engine="modelled")
            make_runner = self.make_runner(told)
            maker = ResourceMaker(
                lambda: make_runner(world.clock),
                lambda: self.open_link(world.info.id, place),
                new_arena=lambda size_bytes, device: SparseArena(size_bytes),
                new_memory=SparseBytes.of,
            )
            return Worker(world, told, maker)

        return build
