"""Plans of the planner for clusters of the papers, with their predicted times. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from msgspec.structs import replace

from livescale.services.planner.plans.make_plan import Prediction, make_plan, predict
from livescale.services.planner.plans.plan import Multicast, Policy, ServingFlow, TransferPlan, multicast_over
from livescale.shared.topology.file import find_topology
from livescale.shared.topology.topology import Domain, Topology, TopologyHost
from livescale.shared.transfer.chunks import MIB

GB = 10**9
# Shares of the line rate that the papers' own figures come to.
NETWORK_SHARE, HOST_LINK_SHARE, NVLINK_SHARE = 0.86, 0.75, 0.67


@dataclass(frozen=True)
class PlannedTransfers:
    """A plan of transfers, how it was made, and when it is predicted to be done."""

    multicast: Multicast
    plan: TransferPlan
    prediction: Prediction

    @property
    def seconds(self) -> float:
        return self.prediction.seconds


@cache
def cluster(name: str) -> Topology:
    return find_topology(name)


def equal_blocks(gigabytes: float, count: int) -> tuple[int, ...]:
    return (int(gigabytes * GB / count),) * count


def planned(
    topology: Topology,
    blocks: Sequence[int],
    holders: Sequence[str],
    takers: Sequence[str],
    policy: Policy = "chains",
    *,
    disks: Sequence[str] = (),
    serving: Sequence[ServingFlow] = (),
    in_blocks: int = 0,
    block_seconds: float = 0.0,
) -> PlannedTransfers:
    """Plan a transfer of these `blocks`, sizes in bytes, to all `takers`. A binomial plan may be cut `in_blocks`."""
    multicast = multicast_over(topology, blocks, holders, takers, disks=disks, serving=serving)
    plan = make_plan(policy, multicast, blocks=in_blocks, block_seconds=block_seconds)
    return PlannedTransfers(multicast, plan, predict(multicast, plan, MIB, block_seconds))


def gpus(host: str, count: int = 8, first: int = 0) -> list[str]:
    return [f"{host}/{index}" for index in range(first, first + count)]


def nodes(first: int, last: int) -> list[str]:
    """GPUs of the first testbed of LambdaScale, of which each is alone on its node."""
    return [f"node{index}/0" for index in range(first, last)]


def hosts_as_a(count: int, *, joined: bool = False) -> Topology:
    """So many hosts as cluster A has them; if `joined`, all their GPUs are in one scale-up domain."""
    a = cluster("cluster-a")
    like = a.hosts[0]

    def host(number: int) -> TopologyHost:
        domain = "pod" if joined else f"a{number}"
        own = [replace(gpu, id=f"a{number}/{index}", domain=domain) for index, gpu in enumerate(like.gpus)]
        return replace(like, id=f"a{number}", gpus=own)

    names = ["pod"] if joined else [f"a{number}" for number in range(count)]
    domains = [Domain(id=name, bandwidth=a.domains[0].bandwidth) for name in names]
    return replace(a, hosts=[host(number) for number in range(count)], domains=domains)
