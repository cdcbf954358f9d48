"""The commands of one plan. Pure."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from services.planner.scales import Command
from shared.messages.membership import LeaseChanged, Member
from shared.messages.parameters import Manifest
from shared.messages.scaling import Abort, Chain, Load, Node, Plan, PlannedInstance, Send, Serve


@dataclass(frozen=True)
class Route:
    """A chain as it is carried out, under a ticket of its own."""

    chain: Chain
    ticket: int

    @property
    def path(self) -> list[str]:
        return [self.chain.source, *self.chain.targets]

    def upstream_of(self, target: str) -> str:
        return self.path[self.path.index(target) - 1]

    def behind(self, node: str) -> list[str]:
        """Who receives through this node."""
        return self.path[self.path.index(node) + 1 :] if node in self.path else []

    def without(self, targets: Iterable[str]) -> "Route":
        left = set(targets)
        kept = [target for target in self.chain.targets if target not in left]
        return Route(Chain(source=self.chain.source, targets=kept), self.ticket)


@dataclass(frozen=True)
class Orders:
    """What they carry. `members` as they were when the plan was made: their addresses and epochs."""

    plan: Plan
    manifest: Manifest
    members: Mapping[str, Member]
    ticket: int
    chunk_bytes: int
    max_model_len: int
    secret: bytes = field(repr=False)

    def routes(self) -> list[Route]:
        return [Route(chain, self.ticket) for chain in self.plan.chains]

    def along(self, routes: Sequence[Route], source: Member, reason: str) -> "Orders":
        """The same plan along other routes, with a source as it is now."""
        chains = [route.chain for route in routes]
        plan = replace(self.plan, chains=chains, reasons=[*self.plan.reasons, reason])
        return dataclasses.replace(self, plan=plan, members={**self.members, source.id: source})

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

    def loads(self, route: Route) -> list[Command]:
        """Last hop first, so that whoever forwards finds its receiver ready."""
        targets = reversed(route.chain.targets)
        return [
            Command(target, self._load(target, route), f"receive from {route.upstream_of(target)}")
            for target in targets
        ]

    def _load(self, worker: str, route: Route) -> Load:
        instance = self.instance_of(worker)
        return Load(
            plan_id=self.plan.id,
            ticket=route.ticket,
            model=self.plan.model,
            instance=instance.id,
            role=instance.role,
            rank=instance.ranks.index(worker),
            manifest=self.manifest,
            upstream=self._node(route.upstream_of(worker)),
            downstream=[self._node(id) for id in route.behind(worker)[:1]],
            chunk_bytes=self.chunk_bytes,
            max_model_len=self.max_model_len,
            epoch=self.members[worker].epoch,
            secret=self.secret,
        )

    def send(self, route: Route) -> Command:
        source = route.chain.source
        message = Send(
            plan_id=self.plan.id,
            ticket=route.ticket,
            version=self.plan.version,
            downstream=[self._node(route.chain.targets[0])],
            chunk_bytes=self.chunk_bytes,
            epoch=self.members[source].epoch,
            secret=self.secret,
        )
        return Command(source, message, "every target is ready to receive")

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
