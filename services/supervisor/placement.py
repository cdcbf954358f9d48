"""Which GPU of a topology each worker of a system on this machine stands for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from livescale.services.supervisor.checks import BadSettings, count_workers
from livescale.services.supervisor.settings import StackSettings
from livescale.shared.topology.file import find_topology


@dataclass(frozen=True)
class Placement:
    """worker-i is at the i-th of `gpus`, and each host that has one of them has a host cache.

    `shaping_file` is set where links are shaped.
    """

    topology: str
    gpus: tuple[str, ...]
    shaping_file: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(host_of(gpu) for gpu in self.gpus))

    def flags(self, place: str) -> Mapping[str, str]:
        """What the worker or host there is told. Each emulated host is a machine of its own in status."""
        shaping = {"topology": self.topology, "shaping_file": self.shaping_file} if self.shaping_file else {}
        return {"place": place, "host_name": host_of(place), **shaping}


def place_workers(settings: StackSettings) -> Placement | None:
    """None without a topology. Raises BadSettings for one that cannot be read, or has too few GPUs."""
    if not settings.topology:
        if settings.shaped:
            raise BadSettings("shaped: links are shaped to a topology; give --topology")
        return None
    if settings.shaped and settings.link_rate:
        raise BadSettings("shaped and link-rate: links are shaped by one of them; leave out --link-rate")
    try:
        gpus = [gpu.id for gpu in find_topology(settings.topology).gpus]
    except ValueError as error:
        raise BadSettings(f"topology: {error}") from None
    if settings.workers > len(gpus) or not gpus:
        raise BadSettings(
            f"topology {settings.topology} has {len(gpus)} GPUs for {count_workers(settings)} workers; "
            "lower --workers or add GPUs"
        )
    return Placement(absolute(settings.topology), tuple(gpus[: count_workers(settings)]))


def absolute(topology: str) -> str:
    """Processes may have another working directory; the name of a shipped one stays a name."""
    path = Path(topology)
    return str(path.resolve()) if path.is_file() else topology


def host_of(place: str) -> str:
    return place.partition("/")[0]
