"""A scale out as a state machine: load the targets, have the senders send, have each whole instance serve. Pure.

Who loses a flow is stranded: it keeps what arrived, and goes on along other flows as soon as there are some.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from services.planner.orders import Orders
from services.planner.scales import Command, Scale
from services.planner.targets import ENDED, RECEIVING, UNDER_WAY, Targets, TargetState
from services.planner.under_way import FlowsUnderWay
from shared.invariants import check
from shared.messages.membership import LeaseChanged, Member, WorkerReport
from shared.messages.parameters import Manifest
from shared.messages.scaling import Decision, ScaleRecord
from shared.messages.transfers import Flow, InstanceServing, Load, Send, Serve, Transfer

REPLAN_SECONDS = 0.5  # the first new plan is made at once, the next ones not sooner than this after it


class ScaleOut(Scale):
    """Carries out a plan, and what it has to become when nodes are lost."""

    def __init__(self, id: str, decision: Decision, orders: Orders, patience_seconds: float) -> None:
        plan = orders.plan
        super().__init__(id, decision, [instance.id for instance in plan.instances], plan)
        self._orders = orders
        self._flows = FlowsUnderWay(plan.flows)
        self._targets = Targets([worker for instance in plan.instances for worker in instance.ranks])
        self._ready: dict[str, frozenset[int]] = {}  # blocks that targets have, as they last said
        self._errors: list[str] = []
        self._patience_seconds = patience_seconds
        self._progress = decision.at
        self._stranded: dict[str, str] = {}  # why, by target
        self._avoid: set[str] = set()
        self._replan_at = decision.at
        self._no_plan = ""

    @property
    def version(self) -> str:
        return self._orders.plan.version

    @property
    def manifest(self) -> Manifest:
        return self._orders.manifest

    @property
    def coming(self) -> frozenset[str]:
        instances = self._orders.plan.instances
        left = (one.id for one in instances if self._targets.lowest(one) is not TargetState.FAILED)
        return frozenset() if self.ended else frozenset(left)

    @property
    def reserved(self) -> frozenset[str]:
        held = self._targets.all_in(*UNDER_WAY, TargetState.SERVING)
        return frozenset() if self.ended else frozenset(held)

    @property
    def sending(self) -> Counter[str]:
        """How many flows each node sends."""
        under_way = [flow.sender for flow in self._flows if self._targets.is_in(flow.receiver, *RECEIVING)]
        return Counter() if self.ended else Counter(under_way)

    @property
    def receiving(self) -> frozenset[str]:
        """Targets that are going to have everything, whoever else is lost meanwhile."""
        if self.ended:
            return frozenset()
        behind = self._flows.behind(self._stranded)
        return frozenset(self._targets.all_in(TargetState.ACCEPTED, TargetState.WHOLE)) - behind

    @property
    def tickets(self) -> frozenset[int]:
        return frozenset(flow.ticket for flow in self._flows)

    def start(self, now: float) -> list[Command]:
        self._move("loading")
        self._note("planned", now)
        self._progress = now
        return self._loads(dict.fromkeys(flow.receiver for flow in self._flows))

    def take_over(self, record: ScaleRecord, reports: Mapping[str, WorkerReport], now: float) -> list[Command]:
        """Go on with what an earlier planner began: who loads for it keeps what arrived."""
        self._continue(record)
        self._progress = now
        planned = [(worker, one.id) for one in self._orders.plan.instances for worker in one.ranks]
        here = [worker for worker, id in planned if worker in reports and reports[worker].instance == id]
        self._strand(here, "the planner was restarted")
        gone = [worker for worker, _ in planned if worker not in here]
        commands = self._fail(gone, f"{', '.join(gone)} left while there was no planner", now)
        return [*commands, *(command for worker in here for command in self.on_report(reports[worker], now))]

    def wants_plan(self, now: float) -> bool:
        """Whether somebody is stranded and it is time to look for another way."""
        return bool(self._stranded) and not self.ended and now >= self._replan_at

    @property
    def missing(self) -> dict[str, list[int]]:
        """Blocks that each stranded target lacks."""
        blocks = range(len(self._orders.manifest.blocks))
        every = {
            worker: [index for index in blocks if index not in self._ready.get(worker, ())] for worker in self._stranded
        }
        return {worker: indexes for worker, indexes in every.items() if indexes}

    @property
    def avoid(self) -> AbstractSet[str]:
        """Who was lost as a sender."""
        return self._avoid

    def replan(
        self, flows: Sequence[Flow], members: Mapping[str, Member], reasons: Sequence[str], now: float
    ) -> list[Command]:
        """Send the stranded what they miss, along these flows."""
        self._replan_at = now + REPLAN_SECONDS
        taken = [flow for flow in flows if flow.receiver in self._stranded]
        self._flows.add(taken)
        senders = {flow.sender for flow in taken}
        self._orders = self._orders.along(list(self._flows), (members[id] for id in sorted(senders)), reasons)
        self._plan = self._orders.plan
        receivers = dict.fromkeys(flow.receiver for flow in taken)
        for worker in receivers:
            self._targets.move(worker, TargetState.COMMANDED)
            from_whom = ", ".join(sorted({flow.sender for flow in taken if flow.receiver == worker}))
            self._note_again("replanned", now, worker, f"{self._stranded.pop(worker)}; now from {from_whom}")
        return self._loads(receivers)

    def not_planned(self, reason: str, now: float) -> None:
        """No other way is known yet."""
        self._replan_at = now + REPLAN_SECONDS
        self._no_plan = reason

    def acknowledged(self, command: Command, now: float) -> list[Command]:
        match command.message:
            case Load() as load if self._is_current(command.node, load):
                if self._targets.is_in(command.node, TargetState.COMMANDED):
                    self._targets.move(command.node, TargetState.ACCEPTED)
                return self._sends(now)
            case Serve():
                return self._serving(command.node, now)
        return []

    def _loads(self, receivers: Iterable[str]) -> list[Command]:
        return [self._orders.load(worker, self._flows.into(worker)) for worker in receivers]

    def _sends(self, now: float) -> list[Command]:
        """A node sends once all who receive from it are ready."""
        ready, awaited = (self._targets.all_in(state) for state in (TargetState.ACCEPTED, TargetState.COMMANDED))
        commands = [self._orders.send(sender, flows) for sender, flows in self._flows.take_unsent(ready, awaited)]
        if commands:
            self._note("commanded", now)
        return commands

    def refused(self, command: Command, error: str, now: float) -> list[Command]:
        node = command.node
        match command.message:
            case Load() as load if self._is_current(node, load):
                return self._fail([node], f"{node} did not load: {error}", now)
            case Send() as send:
                tickets = {flow.ticket for flow in send.outflows}
                lost = [flow.receiver for flow in self._flows if flow.ticket in tickets]
                self._strand(lost, f"{node} did not send: {error}", node)
            case Serve():
                return self._fail([node], f"{node} did not serve: {error}", now)
        return []

    def on_transfer(self, event: Transfer, now: float) -> list[Command]:
        node = event.node
        if self.ended or node not in self._targets:
            return []
        if event.state == "failed":
            return self._fail([node], f"{node}: {event.error or 'transfer failed'}", now)
        if event.state == "broken":
            lost = [flow for flow in self._flows.into(node) if flow.ticket == event.ticket]  # else it has been replaced
            for flow in lost:
                self._strand([node], event.error or "the transfer broke off", flow.sender)
            return self._sends(now)
        self._progress = now
        self._note("first_byte", event.first_byte_at or event.at, node)
        serves = self._whole(node, event.at) if event.state == "whole" else []
        self._explain("whole", node, event.how)
        return serves

    def on_progress(self, now: float) -> None:
        self._progress = now

    def on_report(self, report: WorkerReport, now: float) -> list[Command]:
        if self.ended or report.id not in self._targets or report.instance not in self.instances:
            return []
        if report.holding is not None:
            self._ready[report.id] = frozenset(report.holding.ready)
        if report.state == "serving":
            self._whole(report.id, now)
            return self._serving(report.id, now)
        holding = report.holding
        if holding is not None and holding.total > 0 and len(holding.ready) == holding.total:
            return self._whole(report.id, now)
        return []

    def on_lease(self, change: LeaseChanged, now: float) -> list[Command]:
        if self.ended or not self._orders.is_gone(change):
            return []
        gone, error = change.id, f"{change.id} is gone: {change.reason}"
        self._strand([flow.receiver for flow in self._flows.out_of(gone)], error, gone)
        return [*self._fail([gone], error, now), *self._sends(now)]

    def on_instance(self, event: InstanceServing, now: float) -> list[Command]:
        if event.instance not in self.instances:
            return []
        if event.what == "first_token":
            self._note("first_token", event.at, event.worker)
        elif event.what == "serving":
            return self._serving(event.worker, event.at)
        return []

    def tick(self, now: float) -> list[Command]:
        silent = now - self._progress
        if self.ended or silent < self._patience_seconds:
            return []
        why = f"; {self._no_plan}" if self._stranded and self._no_plan else ""
        return self._fail(self._targets.all_in(*UNDER_WAY), f"nothing arrived for {silent:.1f} s{why}", now)

    def check_invariants(self) -> None:
        """Who receives has flows, who is stranded or failed has none. Raises InvariantBroken."""
        check(self._broken_invariants())

    def _broken_invariants(self) -> Iterator[str]:
        for worker in self._targets.all_in(*RECEIVING):
            if not self._flows.into(worker):
                yield f"{self.id}: {worker} receives along no flow"
        for worker in self._targets.all_in(TargetState.STRANDED, TargetState.FAILED):
            if self._flows.into(worker):
                yield f"{self.id}: {worker} receives nothing and has flows"
        if sorted(self._stranded) != sorted(self._targets.all_in(TargetState.STRANDED)):
            yield f"{self.id}: {sorted(self._stranded)} are to be replanned"
        if self.ended != (len(self._targets.all_in(*ENDED)) == len(self._targets)):
            yield f"{self.id}: {self.state} although {len(self._targets.all_in(*UNDER_WAY))} targets are under way"

    def _whole(self, worker: str, at: float) -> list[Command]:
        if not self._targets.is_in(worker, TargetState.ACCEPTED, TargetState.STRANDED):
            return []
        self._targets.move(worker, TargetState.WHOLE)
        self._stranded.pop(worker, None)
        self._note("whole", at, worker)
        instance = self._orders.instance_of(worker)
        return self._orders.serves(instance) if self._targets.lowest(instance) is TargetState.WHOLE else []

    def _serving(self, worker: str, at: float) -> list[Command]:
        if self.ended or not self._targets.is_in(worker, TargetState.WHOLE):
            return []
        self._targets.move(worker, TargetState.SERVING)
        self._note("serving", at, worker)
        self._finish(at)
        return []

    def _strand(self, workers: Iterable[str], why: str, sender: str = "") -> None:
        """These receive nothing any more, until there is another plan; better not from `sender` again."""
        stranded = {worker: None for worker in workers if self._targets.is_in(worker, *RECEIVING)}
        if not stranded:
            return
        self._avoid.add(sender)
        for worker in stranded:
            self._targets.move(worker, TargetState.STRANDED)
            self._stranded[worker] = why
        self._flows.drop(stranded)

    def _fail(self, workers: Iterable[str], error: str, now: float) -> list[Command]:
        """Give these up, with the other ranks of their instances; who received from them is stranded."""
        hit = [one for one in self._orders.plan.instances if set(one.ranks) & set(workers)]
        failing = [worker for one in hit for worker in one.ranks if self._targets.is_in(worker, *UNDER_WAY)]
        if not failing:
            return []
        for worker in failing:
            self._targets.move(worker, TargetState.FAILED)
            self._stranded.pop(worker, None)
        senders = {flow.sender: None for flow in self._flows if flow.sender not in self._targets}
        self._flows.drop(failing)
        for worker in failing:
            self._strand([flow.receiver for flow in self._flows.out_of(worker)], error, worker)
        self._errors.append(error)
        over = not self._targets.all_in(TargetState.STRANDED, *RECEIVING)
        aborts = self._orders.aborts([*failing, *(senders if over else [])], error)
        self._finish(now)
        return [*aborts, *self._sends(now)]

    def _finish(self, now: float) -> None:
        if len(self._targets.all_in(*ENDED)) == len(self._targets):
            serving = len(self._targets.all_in(TargetState.SERVING))
            self._end(self._errors, now, f"{serving} new instances serve")

    def _is_current(self, worker: str, load: Load) -> bool:
        return {flow.ticket for flow in load.inflows} == {flow.ticket for flow in self._flows.into(worker)}
