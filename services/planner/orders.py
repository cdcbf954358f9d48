"""The commands of one plan. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.planner.scales import Command
from shared.messages.membership import LeaseChanged, Member
from shared.messages.parameters import Manifest
from shared.messages.scaling import Abort, Chain, Load, Node, Plan, PlannedInstance, Send, Serve


@dataclass(frozen=True)
class Orders:
    """What they carry. `members` as they were when the plan was made: their addresses and epochs."""

    plan: Plan
    manifest: Manifest
    members: Mapping[str, Member]
    ticket: int
    chunk_bytes: int
    max_model_len: int

    def _node(self, id: str) -> Node:
        member = self.members[id]
        return Node(id=id, place="host" if member.service == "host" else "worker", address=member.address or b"")

    def instance_of(self, worker: str) -> PlannedInstance:
        return next(one for one in self.plan.instances if worker in one.ranks)

    def is_gone(self, change: LeaseChanged) -> bool:
        """Whether this says that a member is dead, or has joined anew, since the plan was made."""
        planned = self.members.get(change.id)
        if planned is None or change.epoch < planned.epoch:
            return False
        return change.state == "dead" or change.epoch > planned.epoch

    def loads(self) -> Iterable[Command]:
        """Last hop first, so that whoever forwards finds its receiver ready."""
        for chain in self.plan.chains:
            path = [chain.source, *chain.targets]
            for index in reversed(range(1, len(path))):
                yield Command(
                    path[index],
                    self._load(path[index], path[index - 1], path[index + 1 : index + 2]),
                    f"receive from {path[index - 1]}",
                )

    def _load(self, worker: str, upstream: str, downstream: list[str]) -> Load:
        instance = self.instance_of(worker)
        return Load(
            plan_id=self.plan.id,
            ticket=self.ticket,
            model=self.plan.model,
            instance=instance.id,
            role=instance.role,
            rank=instance.ranks.index(worker),
            manifest=self.manifest,
            upstream=self._node(upstream),
            downstream=[self._node(id) for id in downstream],
            chunk_bytes=self.chunk_bytes,
            max_model_len=self.max_model_len,
            epoch=self.members[worker].epoch,
        )

    def sends(self) -> list[Command]:
        return [Command(one.source, self._send(one), "every target is ready to receive") for one in self.plan.chains]

    def _send(self, chain: Chain) -> Send:
        return Send(
            plan_id=self.plan.id,
            ticket=self.ticket,
            version=self.plan.version,
            downstream=[self._node(chain.targets[0])],
            chunk_bytes=self.chunk_bytes,
            epoch=self.members[chain.source].epoch,
        )

    def serves(self, instance: PlannedInstance) -> list[Command]:
        return [
            Command(
                rank,
                Serve(plan_id=self.plan.id, instance=instance.id, epoch=self.members[rank].epoch),
                "every rank is whole",
            )
            for rank in instance.ranks
        ]

    def aborts(self, nodes: Iterable[str], reason: str) -> list[Command]:
        return [Command(node, Abort(plan_id=self.plan.id, reason=reason), reason) for node in nodes]
