"""The commands of one plan: what its nodes are told to load, send, serve or abort. Pure."""

import dataclasses
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from livescale.services.planner.plans.execution_pipelines import StageSpan
from livescale.services.planner.plans.plan import TransferPlan
from livescale.services.planner.running_scale import NodeCommand
from livescale.shared.messages.live import Help
from livescale.shared.messages.membership import LeaseChanged, Member, WorkerReport
from livescale.shared.messages.model_parallel import Pipeline, Stage
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.transfers import (
    Abort,
    Flow,
    FromDisk,
    Inflow,
    Load,
    Node,
    Outflow,
    Plan,
    PlannedInstance,
    Send,
    Serve,
)

MOST_NAMED = 16  # nodes in a reason, of which the record of a scale keeps one for each helper


@dataclass(frozen=True)
class Orders:
    """What the commands of a plan are made from.

    `members` are the processes by id as they were when the plan was made, with their addresses and epochs. `secret`
    lets the nodes of the plan recognise each other. With `tbt_slo` workers pace decodes by it, in seconds.
    """

    plan: Plan
    spec: ModelSpec
    manifest: Manifest
    members: Mapping[str, Member]
    chunk_bytes: int
    max_model_len: int
    secret: bytes = field(repr=False)
    tbt_slo: float | None = None

    def along(self, flows: Sequence[Flow], senders: Iterable[Member], reasons: Iterable[str]) -> "Orders":
        """Return the orders of the same plan along other flows, with the senders of these as they are now."""
        plan = replace(self.plan, flows=list(flows), reasons=[*self.plan.reasons, *reasons])
        members = {**self.members, **{member.id: member for member in senders}}
        return dataclasses.replace(self, plan=plan, members=members)

    def _node(self, id: str) -> Node:
        member = self.members[id]
        return Node(id=id, place="host" if member.service == "host" else "worker", address=member.address or b"")

    def instance_of(self, worker: str) -> PlannedInstance:
        """Return the new instance that this worker is a rank of."""
        return next(one for one in self.plan.instances if worker in one.ranks)

    def rank_of(self, worker: str) -> int:
        """Return the rank of this worker in its instance."""
        return self.instance_of(worker).ranks.index(worker)

    def is_gone(self, change: LeaseChanged) -> bool:
        """Say whether this change of a lease means that a member of the plan is dead or has joined anew."""
        planned = self.members.get(change.id)
        if planned is None or change.epoch < planned.epoch:
            return False
        return change.state == "dead" or change.epoch > planned.epoch

    def load(self, worker: str, flows: Sequence[Flow]) -> NodeCommand:
        """Tell a worker to receive its shard along these flows."""
        instance = self.instance_of(worker)
        message = Load(
            plan_id=self.plan.id,
            model=self.plan.model,
            instance=instance.id,
            role=instance.role,
            rank=self.rank_of(worker),
            manifest=self.manifest.of_shard(self.rank_of(worker)),
            inflows=[self._inflow(flow) for flow in flows],
            chunk_bytes=self.chunk_bytes,
            max_model_len=self.max_model_len,
            epoch=self.members[worker].epoch,
            secret=self.secret,
            live=self.plan.live if self.plan.is_live(instance) else "off",
            ranks=instance.ranks if len(instance.ranks) > 1 else [],
            parked=worker in self.plan.parked,
            tbt_slo=self.tbt_slo,
        )
        senders = ", ".join(sorted({flow.sender for flow in flows}))
        return NodeCommand(worker, message, f"receive from {senders}" if senders else "it has the parameters still")

    def sends(self, sender: str, flows: Sequence[Flow]) -> Iterator[NodeCommand]:
        """Tell a node to send along these flows, with a command for each shard among them."""
        for shard in sorted({self.rank_of(flow.receiver) for flow in flows}):
            yield self._send(sender, [flow for flow in flows if self.rank_of(flow.receiver) == shard], shard)

    def _send(self, sender: str, flows: Sequence[Flow], shard: int) -> NodeCommand:
        reads = any(flow.from_disk for flow in flows)
        message = Send(
            plan_id=self.plan.id,
            version=self.plan.version,
            outflows=[self._outflow(flow) for flow in flows],
            chunk_bytes=self.chunk_bytes,
            epoch=self.members[sender].epoch,
            secret=self.secret,
            from_disk=FromDisk(spec=self.spec, manifest=self.manifest) if reads else None,
            shard=shard,
            setup_seconds=self.plan.setup_seconds,
        )
        return NodeCommand(sender, message, "every target is ready to receive")

    def help(self, helper: WorkerReport, targets: Iterable[str]) -> NodeCommand:
        """Tell a worker to take requests over from these targets, and from no other target of this plan."""
        nodes = [self._node(target) for target in targets]
        message = Help(
            plan_id=self.plan.id,
            model=self.plan.model,
            version=self.plan.version,
            targets=nodes,
            epoch=helper.epoch,
        )
        more = [f"{len(nodes) - MOST_NAMED} more"] if len(nodes) > MOST_NAMED else []
        whom = ", ".join([*(node.id for node in nodes[:MOST_NAMED]), *more]) or "no target any more"
        return NodeCommand(helper.id, message, f"take requests over from {whom}")

    def pipeline(self, id: str, stages: Sequence[StageSpan], kv_blocks: int, worker: str) -> NodeCommand:
        """Tell a worker to run its stages of an execution pipeline; `stages` are all of them."""
        message = Pipeline(
            id=id,
            plan_id=self.plan.id,
            model=self.plan.model,
            version=self.plan.version,
            stages=[Stage(node=self._node(span.worker), first=span.first, stop=span.stop) for span in stages],
            kv_blocks=kv_blocks,
            epoch=self.members[worker].epoch,
            secret=self.secret,
        )
        return NodeCommand(worker, message, f"run {', '.join(map(str, stages))}")

    def _inflow(self, flow: Flow) -> Inflow:
        upstream = self._node(flow.sender)
        return Inflow(ticket=flow.ticket, upstream=upstream, blocks=flow.blocks, lane=flow.lane, lanes=flow.lanes)

    def _outflow(self, flow: Flow) -> Outflow:
        stepped = flow.blocks if flow.steps else []
        return Outflow(ticket=flow.ticket, downstream=self._node(flow.receiver), blocks=stepped, steps=flow.steps)

    def serves(self, instance: PlannedInstance) -> list[NodeCommand]:
        """Tell every rank of an instance to serve."""
        return [
            NodeCommand(
                rank,
                Serve(plan_id=self.plan.id, instance=instance.id, epoch=self.members[rank].epoch),
                "every rank is whole",
            )
            for rank in instance.ranks
        ]

    def aborts(self, nodes: Iterable[str], reason: str) -> list[NodeCommand]:
        """Tell these nodes to end whatever they do for this plan."""
        return [NodeCommand(node, Abort(plan_id=self.plan.id, reason=reason), reason) for node in nodes]


def ticketed(plan: TransferPlan, blocks: int, tickets: Iterator[int], disks: Container[str] = ()) -> list[Flow]:
    """Return the flows of a plan as messages have them, each with a ticket.

    `blocks` is the number of the model's blocks, and `disks` are the hosts that have it on disk only.
    """
    every = tuple(range(blocks))
    return [
        Flow(
            sender=flow.sender,
            receiver=flow.receiver,
            ticket=next(tickets),
            blocks=[] if flow.blocks == every and not flow.steps else list(flow.blocks),
            lane=flow.lane,
            lanes=flow.lanes,
            steps=list(flow.steps),
            from_disk=flow.sender in disks,
        )
        for flow in plan.flows
    ]
