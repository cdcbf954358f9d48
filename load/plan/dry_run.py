"""A plan for a cluster that need not exist: which nodes have copies, which want one, and how long it takes. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from livescale.services.planner.plans.execution_pipelines import pipeline_ready
from livescale.services.planner.plans.make_plan import Prediction, make_plan, predict
from livescale.services.planner.plans.plan import (
    Direction,
    LinkKind,
    Multicast,
    Policy,
    ServingFlow,
    TransferPlan,
    multicast_over,
)
from livescale.shared.topology.topology import Topology
from livescale.shared.transfer.chunks import chunk_bytes_for
from livescale.shared.units import parse_rate

DISKS = "disks"
LINKS: Mapping[str, LinkKind] = {"": "nic", "domain": "domain", "link": "link"}
DIRECTIONS: Mapping[str, Direction] = {"in": "in", "out": "out"}


class ReadyPipeline(msgspec.Struct, frozen=True):
    """An execution pipeline, and when it has the whole model."""

    nodes: tuple[str, ...]
    ready_at: float


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """A plan and its predicted times, in seconds from the start."""

    topology: str
    block_bytes: tuple[int, ...]
    multicast: Multicast
    plan: TransferPlan
    prediction: Prediction
    chunk_bytes: int

    @property
    def size_bytes(self) -> int:
        return sum(self.block_bytes)

    @property
    def bound_seconds(self) -> float:
        """All bytes over the slowest NIC that has to take them."""
        rates = [target.node.at.nic_in for target in self.multicast.targets if target.node.id in self.plan.targets]
        return self.size_bytes / min(rates)

    @property
    def pipelines(self) -> list[ReadyPipeline]:
        """The pipelines with the times at which they can execute, the earliest first."""
        made = [ReadyPipeline(nodes, pipeline_ready(nodes, self.prediction.ready)) for nodes in self.plan.pipelines]
        return sorted(made, key=lambda pipeline: (pipeline.ready_at, pipeline.nodes))


def dry_run(
    topology: Topology,
    block_bytes: tuple[int, ...],
    targets: int,
    policy: Policy,
    sources: str,
    *,
    serving: Sequence[str] = (),
    blocks: int = 0,
    block_seconds: float = 0.0,
) -> DryRun:
    """Plan a transfer and predict its times. Raises ValueError for arguments that contradict the topology, and
    CannotPlan."""
    holders = find_sources(topology, sources)
    takers = [gpu.id for gpu in topology.gpus if gpu.id not in holders]
    if targets > len(takers):
        raise ValueError(f"--targets {targets}: {topology.name} has {len(takers)} GPUs besides the sources")
    multicast = multicast_over(
        topology,
        block_bytes,
        holders,
        takers,
        count=targets,
        disks=[host.id for host in topology.hosts] if sources == DISKS or policy == "local" else (),
        serving=[parse_serving(topology, text) for text in serving],
    )
    chunk_bytes = chunk_bytes_for(min(node.at.nic_out for node in multicast.nodes.values()))
    plan = make_plan(policy, multicast, sources=len(holders), blocks=blocks, block_seconds=block_seconds)
    return DryRun(
        topology=topology.name,
        block_bytes=block_bytes,
        multicast=multicast,
        plan=plan,
        prediction=predict(multicast, plan, chunk_bytes, block_seconds),
        chunk_bytes=chunk_bytes,
    )


def find_sources(topology: Topology, text: str) -> list[str]:
    """`3`: that many GPUs, on as many hosts as there are; or ids of GPUs and hosts; or `disks`. Raises ValueError."""
    if text == DISKS:
        return []
    if not text.isdecimal():
        ids = [id.strip() for id in text.split(",")]
        for id in ids:
            check_place(topology, "--sources", id)
        return ids
    gpus = sorted(((index, number) for number, host in enumerate(topology.hosts) for index in range(len(host.gpus))))
    if not 1 <= int(text) < len(gpus):
        raise ValueError(f"--sources {text}: {topology.name} has {len(gpus)} GPUs, and at least one has to be a target")
    return [topology.hosts[number].gpus[index].id for index, number in gpus[: int(text)]]


def parse_serving(topology: Topology, text: str) -> ServingFlow:
    """`a0/0:out=5 GB/s` of the NIC, `a0/0:domain-in=5 GB/s` of another link. Raises ValueError."""
    node, _, rest = text.partition(":")
    link, _, rate = rest.partition("=")
    kind, _, name = link.rpartition("-")
    if kind not in LINKS or name not in DIRECTIONS:
        raise ValueError(
            f"--serving {text}: write a node, a direction and a rate, as in a0/0:out=5GB/s; "
            "domain-out is within the domain, link-out to the host's memory"
        )
    check_place(topology, "--serving", node)
    return ServingFlow(node, DIRECTIONS[name], parse_rate(rate), LINKS[kind])


def check_place(topology: Topology, option: str, id: str) -> None:
    if id not in topology.places:
        some = ", ".join(list(topology.places)[:4])
        raise ValueError(f"{option}: {id!r} is neither a GPU nor a host of {topology.name}, such as {some}")
