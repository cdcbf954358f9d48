"""A scale out as a state machine: targets load, senders send, and each instance serves once it is whole. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import structs

from livescale.services.planner.delivery import Delivery
from livescale.services.planner.live import LiveHelp
from livescale.services.planner.orders import Orders
from livescale.services.planner.pipelines import ExecutionPipelines
from livescale.services.planner.running_scale import NodeCommand, SwitchingScale
from livescale.services.planner.targets import UNDER_WAY, TargetState
from livescale.shared.messages.live import Help
from livescale.shared.messages.membership import LeaseChanged, Member, WorkerReport
from livescale.shared.messages.model_parallel import Pipeline
from livescale.shared.messages.scaling import Decision, RoleMove, ScaleRecord
from livescale.shared.messages.transfers import BlockReady, Flow, InstanceServing, Load, Plan, Send, Serve, Transfer
from livescale.shared.policy.invariants import check

FIRST_LAYER = (0, 1)  # with the embedding before it


class ScaleOut(SwitchingScale):
    """Carries out a plan, and what the plan has to become when nodes are lost.

    `delivery` knows how far each target is. The scale fails if nothing of it arrives for `timeout_seconds`. `workers`
    are the last reports of all workers.
    """

    def __init__(
        self,
        id: str,
        decision: Decision,
        orders: Orders,
        timeout_seconds: float,
        workers: Iterable[WorkerReport] = (),
        moves: Sequence[RoleMove] = (),
    ) -> None:
        super().__init__(id, decision, [instance.id for instance in orders.plan.instances], moves)
        self._help = LiveHelp(orders.plan, workers)
        self.delivery = Delivery(orders, decision.at)
        self._targets = self.delivery.targets
        self._pipelines = ExecutionPipelines(self.delivery)
        self._errors: list[str] = []
        self._timeout_seconds = timeout_seconds
        self._progress = decision.at
        self._shown: set[str] = set()  # workers that a report has shown to serve

    @property
    def plan(self) -> Plan:
        """The plan as it is now, after nodes were lost."""
        return self.delivery.orders.plan

    @property
    def coming(self) -> frozenset[str]:
        """Those of which no report has said yet that they serve: from then on their reports alone count, as they may be
        drained while others still load."""
        planned = (one for one in self.plan.instances if one.ranks[0] not in self._shown)
        left = (one.id for one in planned if self._targets.lowest(one) is not TargetState.FAILED)
        return frozenset() if self.ended else frozenset(left)

    @property
    def reserved(self) -> frozenset[str]:
        return frozenset(() if self.ended else self._targets.all_in(*UNDER_WAY, TargetState.SERVING))

    @property
    def sending(self) -> Counter[str]:
        """How many flows each node sends to targets that still receive, by node."""
        return Counter() if self.ended else self.delivery.sending

    @property
    def receiving(self) -> frozenset[str]:
        """The targets that are going to have everything, even if all that are stranded now stay so."""
        return frozenset() if self.ended else self.delivery.receiving

    @property
    def live(self) -> frozenset[str]:
        """The targets that take requests while they load, or are going to, with all ranks of their instances."""
        ranks = (worker for one in self.plan.instances if self.plan.is_live(one) for worker in one.ranks)
        return frozenset() if self.ended else frozenset(self._targets.all_in(*UNDER_WAY)).intersection(ranks)

    def follow_up(self, now: float) -> list[NodeCommand]:
        before = self._pipelines.records
        commands = self._pipelines.look(now)
        self._changed = self._changed or self._pipelines.records != before
        return [*commands, *self.helps()]

    def helps(self) -> list[NodeCommand]:
        """Return commands for the helpers whose targets have changed."""
        if not self._help.changed:
            return []
        failed = frozenset(self._targets.all_in(TargetState.FAILED))
        more_come = bool(self._targets.all_in(TargetState.COMMANDED))
        return list(self._help.tell(self.delivery.orders, failed, more_come=more_come))

    def start(self, now: float) -> list[NodeCommand]:
        self._move("loading")
        self._note("planned", now)
        self._progress = now
        return [*self._begin_moves(), *self.delivery.load_all()]

    def take_over(
        self,
        record: ScaleRecord,
        reports: Mapping[str, WorkerReport],
        now: float,
        absent: str = "left while there was no planner",
    ) -> list[NodeCommand]:
        """Continue what an earlier planner began: who loads keeps what has arrived, and those that served are done.
        Targets without a report are given up: `absent` says why."""
        self._continue(record)
        self.delivery.arrivals.continue_from(record)
        self._pipelines.take_over(record.pipelines, now)
        self._progress = now
        planned = {worker: one.id for one in self.plan.instances for worker in one.ranks}
        self._shown = {phase.node for phase in record.phases if phase.name == "serving" and phase.node in planned}
        self.delivery.served(self._shown)
        left = {worker: id for worker, id in planned.items() if worker not in self._shown}
        here = [worker for worker, id in left.items() if worker in reports and reports[worker].instance == id]
        # Flows may have broken unnoticed: a new plan brings what is still missing.
        self.delivery.strand(here, "the planner was restarted")
        gone = [worker for worker in left if worker not in here]
        commands = self._fail(gone, f"{', '.join(gone)} {absent}", now)
        self._finish(now)
        commands += self._begin_moves(record)
        return [*commands, *(command for worker in here for command in self.on_report(reports[worker], now))]

    def wants_plan(self, now: float) -> bool:
        """Say whether a target is stranded and it is time to look for another way."""
        return self.delivery.stranded.is_due(now) and not self.ended

    def replan(
        self, flows: Sequence[Flow], members: Mapping[str, Member], reasons: Sequence[str], now: float
    ) -> list[NodeCommand]:
        """Send the stranded targets what they lack along these flows; `members` are the processes by id as they are
        now."""
        self.delivery.stranded.looked(now)
        changes = self.delivery.replan(flows, members, reasons)
        for worker, detail in changes.items():
            self._note_again("replanned", now, worker, detail)
        return self.delivery.loads(changes)

    def acknowledged(self, command: NodeCommand, now: float) -> list[NodeCommand]:
        match command.message:
            case Load() as load if self.delivery.is_current(command.node, load):
                self.delivery.accept(command.node)
                self._help.loads(command.node)
                return self._sends(now)
            case Serve():
                return self._serving(command.node, now)
            case Help():
                self._note_again("helps", now, command.node, command.reason)
            case Pipeline() as pipeline:
                self._pipelines.acknowledged(command.node, pipeline, now)
        return []

    def refused(self, command: NodeCommand, error: str, now: float) -> list[NodeCommand]:
        node = command.node
        match command.message:
            case Load() as load if self.delivery.awaits(node, load):
                return self._fail([node], f"{node} did not load: {error}", now)
            case Send() as send:
                self.delivery.lose_flows((flow.ticket for flow in send.outflows), f"{node} did not send: {error}")
            case Serve():
                return self._fail([node], f"{node} did not serve: {error}", now)
            case Help():
                self._help.forget(node)
            case Pipeline() as pipeline:
                return self._pipelines.refused(node, pipeline, error, now)
        return super().refused(command, error, now)

    def wants(self, command: NodeCommand) -> bool:
        match command.message:
            case Load() as load:
                return self.delivery.awaits(command.node, load)
            case Send() as send:
                return self.delivery.is_sending({flow.ticket for flow in send.outflows})
            case Serve():
                return self._targets.is_in(command.node, TargetState.WHOLE)
            case _:  # what was told of help and pipelines may have been replaced meanwhile
                return super().wants(command)

    def excuse(self, seconds: float) -> None:
        self._progress += seconds

    def on_transfer(self, event: Transfer, now: float) -> list[NodeCommand]:
        node = event.node
        if self.ended or node not in self._targets:
            return []
        if event.state == "failed":
            return self._fail([node], f"{node}: {event.error or 'transfer failed'}", now)
        if event.state == "broken":  # what is said of a flow that has been replaced comes too late
            if any(flow.ticket == event.ticket for flow in self.delivery.flows if flow.receiver == node):
                self.delivery.lose_flows([event.ticket], event.error or "the transfer broke off")
            return self._sends(now)
        self._progress = now
        self._note("first_byte", event.first_byte_at or event.at, node)
        serves = self._whole(node, event.at) if event.state == "whole" else []
        self._explain("whole", node, event.how)
        return serves

    def on_block(self, block: BlockReady, now: float) -> list[NodeCommand]:
        self._progress = now
        if block.worker in self._targets:
            self.delivery.arrivals.arrive(block)
        return []

    def on_report(self, report: WorkerReport, now: float) -> list[NodeCommand]:
        super().on_report(report, now)
        self._help.on_report(report)
        if self.ended or report.id not in self._targets or report.instance not in self.instances:
            return []
        commands = self._pipelines.on_report(report, now)
        if (holding := report.holding) is not None:
            self.delivery.arrivals.see(report.id, holding.ready)
        if report.state == "live" and (report.live_layers or report.pipeline):
            first_layer_at = None if report.pipeline else self.delivery.ready_at(report.id, FIRST_LAYER)
            self._note("live", first_layer_at or now, report.id)
        if report.state == "serving":
            self._shown.add(report.id)
            self._whole(report.id, now)
            return [*commands, *self._serving(report.id, now)]
        if holding is not None and holding.is_whole:
            commands += self._whole(report.id, now)
        return commands

    def on_lease(self, change: LeaseChanged, now: float) -> list[NodeCommand]:
        super().on_lease(change, now)
        self._help.on_lease(change)
        if self.ended or not self.delivery.orders.is_gone(change):
            return []
        gone, error = change.id, f"{change.id} is gone: {change.reason}"
        self.delivery.lose_sender(gone, error)
        return [*self._fail([gone], error, now), *self._sends(now)]

    def on_instance(self, event: InstanceServing, now: float) -> list[NodeCommand]:
        if event.instance not in self.instances:
            return []
        if event.what in ("first_layer", "first_token"):
            self._note(event.what, event.at, event.worker)
            if event.what == "first_token":
                self._pipelines.first_token(event.worker, event.at)
        elif event.what == "serving":
            return self._serving(event.worker, event.at)
        return []

    def tick(self, now: float) -> list[NodeCommand]:
        silent = now - self._progress
        if self.ended or silent < self._timeout_seconds:
            return []
        return self.give_up(f"nothing arrived for {silent:.1f} s{self.delivery.stranded.problem}", now)

    def give_up(self, why: str, now: float) -> list[NodeCommand]:
        """Have all targets that do not serve yet load no more."""
        return self._fail(self._targets.all_in(*UNDER_WAY), why, now)

    def record(self) -> ScaleRecord:
        arrived, pipelines = self.delivery.arrivals.arrived, self._pipelines.records
        return structs.replace(super().record(), plan=self.plan, arrived=arrived, pipelines=pipelines)

    def check_invariants(self) -> None:
        """Check that flows suit the state of their targets, and that the scale ends with the last target.

        Raises InvariantBroken.
        """
        check(self._broken_invariants())

    def _broken_invariants(self) -> Iterator[str]:
        broken = chain(self.delivery.broken_invariants(), self._help.broken(), self._pipelines.broken_invariants())
        yield from (f"{self.id}: {one}" for one in broken)
        if self.ended != self.delivery.has_ended:
            yield f"{self.id}: {self.state} although {len(self._targets.all_in(*UNDER_WAY))} targets are under way"

    def _sends(self, now: float) -> list[NodeCommand]:
        if commands := self.delivery.sends():
            self._note("commanded", now)
            self.delivery.arrivals.begin(now)
        return commands

    def _whole(self, worker: str, at: float) -> list[NodeCommand]:
        if not self.delivery.whole(worker):
            return []
        self._note("whole", at, worker)
        return [] if self._pipelines.holds(worker) else self.delivery.serves(worker)

    def _serving(self, worker: str, at: float) -> list[NodeCommand]:
        if self.ended or not self._targets.is_in(worker, TargetState.WHOLE):
            return []
        self._targets.move(worker, TargetState.SERVING)
        self._note("serving", at, worker)
        self._finish(at)
        return []

    def _fail(self, workers: Iterable[str], error: str, now: float) -> list[NodeCommand]:
        aborts = self.delivery.fail(workers, error)
        if not aborts:
            return []
        self._errors.append(error)
        self._help.changed = True
        self._finish(now)
        return [*aborts, *self._sends(now)]

    def _finish(self, now: float) -> None:
        if self.delivery.has_ended and not self.ended:
            serving = sum(self._targets.lowest(one) is TargetState.SERVING for one in self.plan.instances)
            self._end(self._errors, now, f"{serving} new instances serve")
