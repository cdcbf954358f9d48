"""The simulated cluster that has the settings of a `livescale up`."""

from collections.abc import Mapping
from typing import Any

from livescale.load.simulate.cluster_settings import VirtualClusterSettings
from livescale.services.host.settings import HostSettings
from livescale.services.monitor.settings import MonitorSettings
from livescale.services.planner.settings import PlannerSettings
from livescale.services.registry.settings import RegistrySettings
from livescale.services.router.settings import RouterSettings
from livescale.services.supervisor.commands import control_flags, engine_flags, worker_flags
from livescale.services.supervisor.settings import StackSettings
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.messages.parameters import ModelConfig
from livescale.shared.topology.topology import Topology


def cluster_of(
    stack: StackSettings, topology: Topology, models: Mapping[str, ModelConfig], seed: int, *, wire: bool
) -> VirtualClusterSettings:
    """The cluster of `topology`, whose services have the flags that `stack` gives to real ones. `models` are the
    checkpoints on every disk, by path. A host's cache takes what its machine has, by the smallest of them."""
    return VirtualClusterSettings(
        topology=topology,
        models=models,
        seed=seed,
        routers=stack.routers,
        wire=wire,
        keep_events=False,
        host=HostSettings(cache_bytes=min(host.memory_bytes for host in topology.hosts)),
        worker=WorkerSettings(**{**engine_flags(stack), **worker_flags(stack)}),  # type: ignore[arg-type]
        **control_settings(stack),
    )


def control_settings(stack: StackSettings) -> dict[str, Any]:
    """The settings of the control plane's services by name, with the flags that `stack` gives to real ones."""
    flags = {name: control_flags(name, stack, None) for name in ("registry", "router", "planner", "monitor")}
    return {
        "registry": RegistrySettings(**flags["registry"]),  # type: ignore[arg-type]
        "router": RouterSettings(**flags["router"]),  # type: ignore[arg-type]
        "planner": PlannerSettings(**flags["planner"]),  # type: ignore[arg-type]
        "monitor": MonitorSettings(**flags["monitor"]),  # type: ignore[arg-type]
    }
