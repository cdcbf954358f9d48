"""A dry run as text for people and as JSON for programs. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from livescale.load.plan.dry_run import DryRun, ReadyPipeline
from livescale.services.planner.plans.plan import ClusterNode, Direction, Policy, TransferFlow, TransferPlan
from livescale.shared.units import format_size

MOST_HOPS = 12


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything, for programs. `ready`: seconds until a block is whole, by target and block."""

    topology: str
    policy: Policy
    size_bytes: int
    blocks: int
    chunk_bytes: int
    seconds: float
    bound_seconds: float
    targets: tuple[str, ...]
    tails: tuple[str, ...]
    pruned: tuple[tuple[str, Direction], ...]
    pipelines: list[ReadyPipeline]
    reasons: tuple[str, ...]
    flows: tuple[TransferFlow, ...]
    ready: Mapping[str, Mapping[int, float]]


class SendRow(msgspec.Struct, frozen=True):
    """What one node sends to another, in all lanes. `whole` is when the receiver has all blocks from all senders."""

    sender: str
    receiver: str
    over: str
    lanes: str
    blocks: str
    steps: str
    first: str
    whole: str


def report(run: DryRun) -> Report:
    plan = run.plan
    return Report(
        topology=run.topology,
        policy=plan.policy,
        size_bytes=run.size_bytes,
        blocks=len(run.block_bytes),
        chunk_bytes=run.chunk_bytes,
        seconds=run.prediction.seconds,
        bound_seconds=run.bound_seconds,
        targets=plan.targets,
        tails=plan.tails,
        pruned=plan.pruned,
        pipelines=run.pipelines,
        reasons=plan.reasons,
        flows=plan.flows,
        ready=run.prediction.ready,
    )


def headline(run: DryRun) -> str:
    plan = run.plan
    return (
        f"{plan.policy} on {run.topology}: {format_size(run.size_bytes)} in {len(run.block_bytes)} blocks to "
        f"{len(plan.targets)} target{'s' if len(plan.targets) > 1 else ''}, all whole after "
        f"{format_seconds(run.prediction.seconds)}; over one NIC the bytes take {format_seconds(run.bound_seconds)}"
    )


def send_rows(run: DryRun) -> Iterator[SendRow]:
    """Return a row for each flow, with sender and receiver. Flows within domains are left out."""
    for flow in run.plan.flows:
        if flow.over != "domain":
            ready = run.prediction.ready[flow.receiver]
            yield SendRow(
                sender=flow.sender,
                receiver=flow.receiver,
                over=flow.over.replace("_", " "),
                lanes=f"{flow.lane + 1} of {flow.lanes}",
                blocks=name_runs(flow.blocks),
                steps=name_runs(sorted(set(flow.steps))) or "-",
                first=format_seconds(min(ready.values())),
                whole=format_seconds(max(ready.values())),
            )


def name_runs(numbers: Sequence[int]) -> str:
    """`0-7 12 13-15`: in their order, neighbours together."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)


def chain_lines(plan: TransferPlan, nodes: Mapping[str, ClusterNode]) -> list[str]:
    """Each path from a holder to its end, as `a0 -> a1 (8 targets, 4 lanes) -> a2`: targets of a domain are one hop."""
    members: dict[str, list[str]] = {}
    for target in plan.targets:
        members.setdefault(nodes[target].group, []).append(target)
    targets = set(plan.targets)
    feeders: dict[str, Counter[tuple[str, int]]] = {}
    for flow in plan.flows:
        group, feeder = nodes[flow.receiver].group, nodes[flow.sender].group
        if feeder != group or flow.sender not in targets:
            name = members[feeder][0] if flow.sender in targets else flow.sender
            feeders.setdefault(group, Counter())[name, flow.lanes] += 1
    upstream = {group: counts.most_common(1)[0][0] for group, counts in feeders.items()}
    feeding = {nodes[sender].group for sender, _ in upstream.values() if sender in targets}
    return [path_to(group, upstream, members, nodes) for group in members if group not in feeding]


def path_to(
    group: str,
    upstream: Mapping[str, tuple[str, int]],
    members: Mapping[str, Sequence[str]],
    nodes: Mapping[str, ClusterNode],
) -> str:
    hops: list[str] = []
    while True:
        sender, lanes = upstream[group]
        count = len(members[group])
        hops.append(members[group][0] if count == 1 else f"{group} ({count} targets, {lanes} lane{'s' * (lanes > 1)})")
        group = nodes[sender].group
        if all(sender not in each for each in members.values()):
            break
    path = [sender, *reversed(hops)]
    if len(path) > MOST_HOPS:
        path = [*path[: MOST_HOPS // 2], f"{len(path) - MOST_HOPS} more", *path[-MOST_HOPS // 2 :]]
    return " -> ".join(path)


def format_seconds(seconds: float) -> str:
    if seconds >= 1000:
        return f"{seconds:.0f} s"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
