"""Reports, snapshots, orders and running scales that the planner's tests are made of."""

import itertools
from collections.abc import Mapping, Sequence

from livescale.services.planner.orders import Orders
from livescale.services.planner.running_scale import NodeCommand
from livescale.services.planner.scale_out import ScaleOut
from livescale.services.planner.targets import message_times
from livescale.shared.messages.membership import (
    EngineLoad,
    Holding,
    HostReport,
    LeaseChanged,
    Member,
    WorkerReport,
    WorkerState,
)
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry, Snapshot
from livescale.shared.messages.scaling import Action, Decision
from livescale.shared.messages.transfers import (
    BlockReady,
    Flow,
    InstanceServing,
    Load,
    Plan,
    PlannedInstance,
    PlannedPipeline,
    Send,
    Transfer,
)
from tests.control.fakes import BLOCKS, manifest, whole

SIZE = 100
VERSION = "v"
ENTRY = ModelEntry(spec=ModelSpec(name="m", path="/m"), state="ready", version=VERSION, size_bytes=SIZE)


def load(running: int = 0) -> EngineLoad:
    return EngineLoad(
        waiting_requests=0,
        waiting_tokens=0,
        running_requests=running,
        max_requests=8,
        kv_blocks_used=0,
        kv_blocks_total=10,
        kv_block_tokens=16,
    )


def spare(id: str, arena_bytes: int = SIZE) -> WorkerReport:
    return WorkerReport(id=id, epoch=1, state="spare", arena_bytes=arena_bytes)


def serving(id: str, running: int = 0, **more: object) -> WorkerReport:
    common = {
        **{"state": "serving", "model": "m", "version": VERSION, "instance": f"i-{id}", "arena_bytes": SIZE},
        **{"load": load(running), "holding": whole("m", VERSION), "traffic": []},
    }
    return WorkerReport(id=id, epoch=1, **{**common, **more})  # type: ignore[arg-type]


def host(id: str, flows_out: int = 0) -> HostReport:
    return HostReport(id=id, epoch=1, holdings=[whole("m", VERSION)], flows_out=flows_out)


def member(id: str, machine: str = "box", **more: object) -> Member:
    service = "host" if id.startswith("host") else "worker"
    common = {"pid": 1, "epoch": 1, "lease": "alive", "address": id.encode()}
    return Member(service=service, id=id, host=machine, **{**common, **more})  # type: ignore[arg-type]


def snapshot(*reports: WorkerReport | HostReport, members: list[Member] | None = None) -> Snapshot:
    return Snapshot(
        members=members if members is not None else [member(report.id) for report in reports],
        workers=[report for report in reports if isinstance(report, WorkerReport)],
        hosts=[report for report in reports if isinstance(report, HostReport)],
        models=[ENTRY],
    )


def decision(action: Action = "out") -> Decision:
    return Decision(
        id="d-1", model="m", at=10.0, action=action, current=1, target=2, rule="r", reason="why", by="monitor"
    )


def chain(*nodes: str, ticket: int = 77) -> list[Flow]:
    pairs = enumerate(itertools.pairwise(nodes))
    return [Flow(sender=sender, receiver=receiver, ticket=ticket + hop) for hop, (sender, receiver) in pairs]


def scale_out(
    targets: list[str],
    ranks: int = 1,
    predicted: Mapping[str, Mapping[int, float]] | None = None,
    live: Sequence[str] = (),
    workers: Sequence[WorkerReport] = (),
    pipelines: Sequence[Sequence[str]] = (),
    source: str = "s",
) -> ScaleOut:
    made = orders(targets, ranks, predicted, live, pipelines, source)
    return ScaleOut("scale-1", decision(), made, timeout_seconds=5.0, workers=workers)


def orders(
    targets: list[str],
    ranks: int = 1,
    predicted: Mapping[str, Mapping[int, float]] | None = None,
    live: Sequence[str] = (),
    pipelines: Sequence[Sequence[str]] = (),
    source: str = "s",
) -> Orders:
    """From a worker along one chain, tickets from 77 on; `ranks` consecutive targets make an instance, and those in
    `live`, or together those of `pipelines`, take requests while they load."""
    times = {target: dict(blocks) for target, blocks in (predicted or {}).items()}
    groups = [targets[index : index + ranks] for index in range(0, len(targets), ranks)]
    plan = Plan(
        id="scale-1",
        model="m",
        version=VERSION,
        instances=[PlannedInstance(id=f"i-{group[0]}", ranks=group) for group in groups],
        flows=chain(source, *targets),
        size_bytes=SIZE,
        predicted={target: max(blocks.values()) for target, blocks in times.items()},
        predicted_blocks=message_times(times, BLOCKS),
        live="pipeline" if pipelines else "zigzag" if live else "off",
        live_targets=[*live, *(member for members in pipelines for member in members)],
        pipelines=[PlannedPipeline(members=list(members)) for members in pipelines],
    )
    return Orders(
        plan=plan,
        spec=ENTRY.spec,
        manifest=manifest(VERSION),
        members={id: member(id, epoch=5) for id in (source, *targets)},
        chunk_bytes=1 << 20,
        max_model_len=512,
        secret=b"of-this-plan",
    )


def names(commands: list[NodeCommand]) -> list[tuple[str, str]]:
    """Return the kind of each command's message and the node that it is for."""
    return [(type(command.message).__name__, command.node) for command in commands]


def acknowledge(scale: ScaleOut, commands: list[NodeCommand], now: float = 11.0) -> list[NodeCommand]:
    return [following for command in commands for following in scale.acknowledged(command, now)]


def transfer(node: str, state: str, at: float = 12.0, error: str | None = None) -> Transfer:
    return Transfer(plan_id="scale-1", node=node, state=state, at=at, error=error)  # type: ignore[arg-type]


def broken(node: str, ticket: int) -> Transfer:
    return Transfer(plan_id="scale-1", node=node, state="broken", at=12.0, ticket=ticket, error="the peer is gone")


def block_ready(worker: str, index: int, at: float = 12.0) -> BlockReady:
    return BlockReady(
        worker=worker,
        model="m",
        instance=f"i-{worker}",
        plan_id="scale-1",
        index=index,
        ready=index + 1,
        total=BLOCKS,
        at=at,
    )


def happened(what: str, worker: str, at: float = 13.0) -> InstanceServing:
    return InstanceServing(instance=f"i-{worker}", model="m", worker=worker, plan_id="scale-1", what=what, at=at)  # type: ignore[arg-type]


def loading(worker: str, blocks: int = BLOCKS, state: WorkerState = "loading", kv_blocks: int = 0) -> WorkerReport:
    held = list(range(blocks))
    return WorkerReport(
        id=worker,
        epoch=5,
        state=state,
        model="m",
        version=VERSION,
        instance=f"i-{worker}",
        plan_id="scale-1",
        holding=Holding(model="m", version=VERSION, ready=held, total=BLOCKS),
        live_layers=blocks - 1 if state == "live" else 0,
        kv_blocks=kv_blocks,
    )


def started(targets: list[str], ranks: int = 1) -> ScaleOut:
    """Return a scale out of which every target is ready and every sender sends."""
    scale = scale_out(targets, ranks)
    sends = acknowledge(scale, scale.start(10.5))
    assert names(sends) == [("Send", sender) for sender in ["s", *targets[:-1]]]
    assert acknowledge(scale, sends) == []
    return scale


def died(id: str, epoch: int = 5) -> LeaseChanged:
    return LeaseChanged(service="worker", id=id, epoch=epoch, state="dead", reason="silent", at=12.0)


def phases(scale: ScaleOut) -> list[tuple[str, str | None, float]]:
    return [(phase.name, phase.node, phase.at) for phase in scale.record().phases]


def refuse(scale: ScaleOut, command: NodeCommand, error: str = "no") -> list[tuple[str, str]]:
    return names(scale.refused(command, error, 11.0))


def inflows(commands: list[NodeCommand]) -> list[tuple[str, str, int]]:
    """Return (receiver, sender, ticket) of each flow in LOADs."""
    loads = [(command.node, command.message) for command in commands if isinstance(command.message, Load)]
    return [(node, flow.upstream.id, flow.ticket) for node, load in loads for flow in load.inflows]


def outflows(commands: list[NodeCommand]) -> list[tuple[str, str, int]]:
    """Return (sender, receiver, ticket) of each flow in SENDs."""
    sends = [(command.node, command.message) for command in commands if isinstance(command.message, Send)]
    return [(node, flow.downstream.id, flow.ticket) for node, send in sends for flow in send.outflows]


def replan_along(scale: ScaleOut, *path: str, ticket: int = 90, now: float = 12.0) -> list[NodeCommand]:
    """Send the stranded targets what they lack along this chain."""
    assert scale.wants_plan(now)
    assert set(path[1:]) <= scale.delivery.lacking.keys()
    members = {id: member(id, epoch=5) for id in path}
    return scale.replan(chain(*path, ticket=ticket), members, [f"now from {path[0]}"], now)


def outcome(scale: ScaleOut) -> tuple[str, str]:
    return scale.state, scale.record().outcome
