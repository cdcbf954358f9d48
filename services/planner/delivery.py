"""A plan on its way: along which flows each target receives, how far it is, and what follows when flows are lost. Pure.

A target that loses a flow is stranded. It keeps what arrived, and goes on along other flows as soon as there are some.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from livescale.services.planner.orders import Orders
from livescale.services.planner.running_scale import NodeCommand
from livescale.services.planner.targets import (
    ENDED,
    RECEIVING,
    UNDER_WAY,
    BlockArrivals,
    FlowsUnderWay,
    ScaleTargets,
    StrandedTargets,
    TargetState,
)
from livescale.shared.messages.membership import Member
from livescale.shared.messages.transfers import Flow, Load


class Delivery:
    """Carries a plan to its targets. Its methods return the commands that follow.

    `orders` are the plan and its commands, `targets` the state of each target, and `arrivals` the blocks that they
    have.
    """

    def __init__(self, orders: Orders, now: float) -> None:
        self.orders = orders
        self.targets = ScaleTargets([worker for instance in orders.plan.instances for worker in instance.ranks])
        self.blocks = len(orders.manifest.of_shard(0).blocks)
        self.arrivals = BlockArrivals(len(self.targets), self.blocks)
        self.stranded = StrandedTargets(now)
        self._flows = FlowsUnderWay(orders.plan.flows)

    @property
    def flows(self) -> list[Flow]:
        """The flows along which a target still receives."""
        return list(self._flows)

    @property
    def has_ended(self) -> bool:
        """Whether every target serves or has failed."""
        return len(self.targets.all_in(*ENDED)) == len(self.targets)

    @property
    def sending(self) -> Counter[str]:
        """How many flows each node sends to targets that still receive, by node."""
        return Counter(flow.sender for flow in self._flows if self.targets.is_in(flow.receiver, *RECEIVING))

    @property
    def receiving(self) -> frozenset[str]:
        """The targets that are going to have everything, even if all that are stranded now stay so."""
        behind = self._flows.behind(list(self.stranded))
        return frozenset(self.targets.all_in(TargetState.ACCEPTED, TargetState.WHOLE)) - behind

    @property
    def lacking(self) -> dict[str, list[int]]:
        """The blocks that each stranded target lacks, by target."""
        return {worker: missing for worker in self.stranded if (missing := self.arrivals.missing(worker))}

    def loads(self, receivers: Iterable[str]) -> list[NodeCommand]:
        """Tell these receivers to receive along their flows."""
        return [self.orders.load(worker, self._flows.into(worker)) for worker in receivers]

    def load_all(self) -> list[NodeCommand]:
        """Tell every target of the plan to receive, which are the first commands of a scale."""
        return self.loads(dict.fromkeys([*self.orders.plan.parked, *(flow.receiver for flow in self._flows)]))

    def ready_at(self, worker: str, blocks: Sequence[int]) -> float | None:
        """Return when the last of these blocks arrived at the last rank of a worker's instance; None unless that is
        known."""
        times = [self.arrivals.ready_at(rank, blocks) for rank in self.orders.instance_of(worker).ranks]
        known = [at for at in times if at is not None]
        return max(known) if len(known) == len(times) else None

    def here(self, worker: str) -> AbstractSet[int]:
        """Return the blocks that all ranks of a worker's instance have."""
        return self.arrivals.here(*self.orders.instance_of(worker).ranks)

    def between_at(self, workers: Iterable[str], *, tied: bool) -> float | None:
        """Return when the instances of these workers had every block between them; None where that is not known."""
        return self.arrivals.between_at([self.orders.instance_of(worker).ranks for worker in workers], tied=tied)

    def is_in(self, worker: str, *states: TargetState) -> bool:
        """Say whether the worker's instance, which is as far as its slowest rank, is in one of these states."""
        return self.targets.lowest(self.orders.instance_of(worker)) in states

    def sends(self) -> list[NodeCommand]:
        """Tell the senders to send. A node sends once all that receive from it are ready."""
        # As sets: each of thousands of flows is looked for in them.
        ready, awaited = (frozenset(self.targets.all_in(one)) for one in (TargetState.ACCEPTED, TargetState.COMMANDED))
        unsent = self._flows.take_unsent(ready, awaited)
        return [command for sender, flows in unsent for command in self.orders.sends(sender, flows)]

    def is_current(self, worker: str, load: Load) -> bool:
        """Say whether this load is the last that the worker was told."""
        return {flow.ticket for flow in load.inflows} == {flow.ticket for flow in self._flows.into(worker)}

    def awaits(self, worker: str, load: Load) -> bool:
        """Say whether the worker's answer to this load is still waited for."""
        return self.targets.is_in(worker, TargetState.COMMANDED) and self.is_current(worker, load)

    def is_sending(self, tickets: AbstractSet[int]) -> bool:
        """Say whether a target still receives along a flow with one of these tickets."""
        return any(flow.ticket in tickets and self.targets.is_in(flow.receiver, *RECEIVING) for flow in self._flows)

    def accept(self, worker: str) -> None:
        """Note that a worker has accepted its load and is ready to receive."""
        if self.targets.is_in(worker, TargetState.COMMANDED):
            self.targets.move(worker, TargetState.ACCEPTED)

    def whole(self, worker: str) -> bool:
        """Note that a worker has everything. Returns whether that is news. Its answer to the load may come later: one
        that has the parameters still has nothing to wait for."""
        self.accept(worker)
        if not self.targets.is_in(worker, TargetState.ACCEPTED, TargetState.STRANDED):
            return False
        self.targets.move(worker, TargetState.WHOLE)
        self.stranded.forget(worker)
        return True

    def served(self, workers: Iterable[str]) -> None:
        """Note that these workers serve, or did, by what an earlier planner saw."""
        for worker in workers:
            self.whole(worker)
            self.targets.move(worker, TargetState.SERVING)

    def serves(self, worker: str) -> list[NodeCommand]:
        """Tell the worker's instance to serve, if every rank of it is whole."""
        instance = self.orders.instance_of(worker)
        return self.orders.serves(instance) if self.targets.lowest(instance) is TargetState.WHOLE else []

    def strand(self, workers: Iterable[str], why: str, sender: str = "") -> None:
        """Note that these targets receive nothing more until there is another plan, which should avoid `sender`."""
        stranded = {worker: None for worker in workers if self.targets.is_in(worker, *RECEIVING)}
        for worker in stranded:
            self.targets.move(worker, TargetState.STRANDED)
            self.stranded.add(worker, why, sender)
        self._flows.drop(stranded)

    def lose_sender(self, node: str, why: str) -> None:
        """Strand all that receive from this node, which is lost."""
        self.strand([flow.receiver for flow in self._flows.out_of(node)], why, node)

    def lose_flows(self, tickets: Iterable[int], why: str) -> None:
        """Strand those that receive along the flows with these tickets. Tickets that have been replaced are ignored."""
        lost = set(tickets)
        for flow in [flow for flow in self._flows if flow.ticket in lost]:
            self.strand([flow.receiver], why, flow.sender)

    def replan(self, flows: Sequence[Flow], members: Mapping[str, Member], reasons: Sequence[str]) -> dict[str, str]:
        """Let the stranded targets receive along new flows.

        `members` are the senders as they are now. Returns for each target why it was stranded and which nodes it
        receives from now.
        """
        taken = [flow for flow in flows if flow.receiver in self.stranded]
        self._flows.add(taken)
        senders = {flow.sender for flow in taken}
        self.orders = self.orders.along(self.flows, (members[id] for id in sorted(senders)), reasons)
        changes: dict[str, str] = {}
        for worker in dict.fromkeys(flow.receiver for flow in taken):
            self.targets.move(worker, TargetState.COMMANDED)
            from_whom = ", ".join(sorted({flow.sender for flow in taken if flow.receiver == worker}))
            changes[worker] = f"{self.stranded.forget(worker)}; now from {from_whom}"
        return changes

    def expect(self, ready: Mapping[str, Mapping[int, float]], now: float) -> None:
        """Renew the predictions: what is missing should be `ready` so many seconds from now, by target and block."""
        self.orders = replace(self.orders, plan=self.arrivals.renew(self.orders.plan, ready, now))

    def fail(self, workers: Iterable[str], why: str) -> list[NodeCommand]:
        """Give these workers up, with the other ranks of their instances, and strand those that received from them.

        Returns commands to abort.
        """
        hit = [one for one in self.orders.plan.instances if set(one.ranks) & set(workers)]
        failing = [worker for one in hit for worker in one.ranks if self.targets.is_in(worker, *UNDER_WAY)]
        for worker in failing:
            self.targets.move(worker, TargetState.FAILED)
            self.stranded.forget(worker)
        senders = {flow.sender: None for flow in self._flows if flow.sender not in self.targets}
        self._flows.drop(failing)
        for worker in failing:
            self.lose_sender(worker, why)
        # The sources go on sending while any target still receives.
        over = not self.targets.all_in(TargetState.STRANDED, *RECEIVING)
        return self.orders.aborts([*failing, *(senders if over else [])], why) if failing else []

    def broken_invariants(self) -> Iterator[str]:
        """Yield what does not hold: targets that receive have flows, targets that are stranded or failed have none."""
        for worker in self.targets.all_in(*RECEIVING):
            if not self._flows.into(worker) and worker not in self.orders.plan.parked:
                yield f"{worker} receives along no flow"
        for worker in self.targets.all_in(TargetState.STRANDED, TargetState.FAILED):
            if self._flows.into(worker):
                yield f"{worker} receives nothing and has flows"
        if sorted(self.stranded) != sorted(self.targets.all_in(TargetState.STRANDED)):
            yield f"{sorted(self.stranded)} are to be replanned"
