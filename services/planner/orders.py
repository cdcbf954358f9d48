"""The commands of one plan. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.planner.scales import Command
from shared.messages.parameters import Manifest
from shared.messages.scaling import Abort, Chain, Load, Node, Plan, PlannedInstance, Send, Serve


@dataclass(frozen=True)
class Orders:
    """What they carry. `epochs` are those of the workers and hosts when the plan was made."""

    plan: Plan
    manifest: Manifest
    nodes: Mapping[str, Node]
    epochs: Mapping[str, int]
    ticket: int
    chunk_bytes: int
    max_model_len: int

    def instance_of(self, worker: str) -> PlannedInstance:
        return next(one for one in self.plan.instances if worker in one.ranks)

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
            upstream=self.nodes[upstream],
            downstream=[self.nodes[id] for id in downstream],
            chunk_bytes=self.chunk_bytes,
            max_model_len=self.max_model_len,
            epoch=self.epochs[worker],
        )

    def sends(self) -> list[Command]:
        return [Command(one.source, self._send(one), "every target is ready to receive") for one in self.plan.chains]

    def _send(self, chain: Chain) -> Send:
        return Send(
            plan_id=self.plan.id,
            ticket=self.ticket,
            version=self.plan.version,
            downstream=[self.nodes[chain.targets[0]]],
            chunk_bytes=self.chunk_bytes,
            epoch=self.epochs[chain.source],
        )

    def serves(self, instance: PlannedInstance) -> list[Command]:
        return [
            Command(
                rank, Serve(plan_id=self.plan.id, instance=instance.id, epoch=self.epochs[rank]), "every rank is whole"
            )
            for rank in instance.ranks
        ]

    def aborts(self, nodes: Iterable[str], reason: str) -> list[Command]:
        return [Command(node, Abort(plan_id=self.plan.id, reason=reason), reason) for node in nodes]
