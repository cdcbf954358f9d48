"""What a cluster in one process is made of: its topology, its models, and the settings of its services."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from livescale.services.host.settings import HostSettings
from livescale.services.monitor.settings import MonitorSettings
from livescale.services.planner.settings import PlannerSettings
from livescale.services.registry.settings import RegistrySettings
from livescale.services.router.settings import RouterSettings
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.messages.membership import ServiceName
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.topology.topology import Topology

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

    All but the first of the `routers` stand by; clients may ask any of the `gateways`. `models` are the checkpoints on
    every disk, by path. `seed` varies what messages take, by half of `message_seconds` more or less. On the `wire` each
    reader decodes them, as on a real bus.
    """

    topology: Topology
    models: Mapping[str, ModelConfig]
    seed: int = 0
    routers: int = 1
    gateways: int = 1
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
        found |= {f"gateway-{number}": ProcessPlace("gateway", CONTROL_HOST) for number in range(1, self.gateways)}
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
