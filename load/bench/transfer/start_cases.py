"""The starts that are compared, and the processes that they run in."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from livescale.load.bench.transfer.disk_model import make_disk_model
from livescale.load.bench.transfer.fleet import BenchFleet, CarriedPlan, carry_out
from livescale.load.bench.transfer.holder import DTYPE, Holder
from livescale.load.bench.transfer.node import Outfit
from livescale.services.host.stored import open_stored
from livescale.services.planner.plans.plan import Multicast, TransferPlan, multicast_over
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.topology.file import find_topology
from livescale.shared.transfer.chunks import chunk_bytes_for

HOLDERS, TARGETS = ("h0/0", "h1", "h2", "h3"), ("h1/0", "h2/0", "h3/0")
NAMES = (*HOLDERS, *TARGETS)
HOST_LINK, DISK = 2.0, 0.25  # times a network card's rate
OWN_DISKS, ONE_MEMORY = "cold, k = 3", "warm, k = 1"


@dataclass(frozen=True)
class StartCase:
    """A start: its model comes from a GPU elsewhere, or from hosts of targets that have it in memory or on disk."""

    case: str
    sources: Sequence[str] = ()
    disks: Sequence[str] = ()

    def multicast(self, topology: Path, sizes: Sequence[int]) -> Multicast:
        cluster = find_topology(str(topology))
        return multicast_over(cluster, sizes, self.sources, TARGETS, disks=self.disks)


def carry(fleet: BenchFleet, plan: TransferPlan, multicast: Multicast, rate: float) -> CarriedPlan:
    return carry_out(fleet, NAMES, plan, chunk_bytes_for(rate), dict.fromkeys(multicast.disks, DISK * rate))


STARTS = (
    StartCase("hot", ["h0/0"]),
    StartCase("warm, k = 1", ["h1"]),
    StartCase("warm, k = 2", ["h1", "h2"]),
    StartCase("warm, k = 3", ["h1", "h2", "h3"]),
    StartCase("cold, k = 1", disks=["h1"]),
    StartCase("cold, k = 3", disks=["h1", "h2", "h3"]),
)


def make_packed(directory: Path, size_bytes: int) -> tuple[Path, list[int]]:
    """A checkpoint with its packed form, and how large its blocks are."""
    made = make_disk_model(directory, size_bytes)
    with closing(open_stored(made, DTYPE, keep=True)) as stored:
        stored.pack(lambda _: None)
        return made, stored.sizes


def outfits(settings: LinkSettings, directory: Path, sizes: Sequence[int]) -> list[Holder | Outfit]:
    holders = [Holder(replace(settings, place=place), str(directory)) for place in HOLDERS]
    targets = [Outfit(replace(settings, place=place), list(sizes), False, False) for place in TARGETS]
    return [*holders, *targets]
