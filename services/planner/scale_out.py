"""A scale out as a state machine: load the targets, let the source send, have each whole instance serve. Pure.

Who loses its upstream is stranded: it keeps what arrived, and goes on along another chain as soon as there is one.
"""

from collections.abc import Iterable, Iterator, Mapping

from services.planner.chains import plan_rest
from services.planner.orders import Orders, Route
from services.planner.scales import Command, Scale
from services.planner.targets import ENDED, RECEIVING, UNDER_WAY, Targets, TargetState
from shared.invariants import check
from shared.messages.membership import LeaseChanged, Snapshot, WorkerReport
from shared.messages.scaling import Decision, InstanceServing, Load, ScaleRecord, Send, Serve, Transfer

REPLAN_SECONDS = 0.5  # the first new plan is made at once, the next ones not sooner than this after it


class ScaleOut(Scale):
    """Carries out a plan, and what it has to become when nodes are lost."""

    def __init__(self, id: str, decision: Decision, orders: Orders, patience_seconds: float) -> None:
        plan = orders.plan
        super().__init__(id, decision, [instance.id for instance in plan.instances], plan)
        self._orders = orders
        self._routes = orders.routes()
        self._sent: set[int] = set()  # tickets
        self._targets = Targets([worker for instance in plan.instances for worker in instance.ranks])
        self._errors: list[str] = []
        self._patience_seconds = patience_seconds
        self._progress = decision.at
        self._stranded: dict[str, str] = {}  # why, by target, in the order of their chains
        self._avoid: set[str] = set()
        self._replan_at = decision.at
        self._no_plan = ""

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
    def sources(self) -> list[str]:
        return [] if self.ended else [route.chain.source for route in self._routes if self._receivers(route)]

    @property
    def tickets(self) -> frozenset[int]:
        return frozenset({self._orders.ticket, *(route.ticket for route in self._routes)})

    def start(self, now: float) -> list[Command]:
        self._move("loading")
        self._note("planned", now)
        self._progress = now
        return [load for route in self._routes for load in self._orders.loads(route)]

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

    def replan(self, snapshot: Snapshot, flows: Mapping[str, int], ticket: int, now: float) -> list[Command]:
        """Send the stranded what they miss, along another chain. Raises CannotPlan."""
        self._replan_at = now + REPLAN_SECONDS
        if not self._stranded:
            return []
        hops = {id: self._children(id) for id in self._targets.all_in(TargetState.ACCEPTED)}
        version = self._orders.plan.version
        chain, reason = plan_rest(snapshot, version, list(self._stranded), hops, self._avoid, flows)
        route = Route(chain, ticket)
        self._routes.append(route)
        source = next(member for member in snapshot.members if member.id == chain.source)
        self._orders = self._orders.along(self._routes, source, reason)
        self._plan = self._orders.plan
        for worker, why in self._stranded.items():
            self._targets.move(worker, TargetState.COMMANDED)
            self._note_again("replanned", now, worker, f"{why}; {reason}")
        self._stranded = {}
        return self._orders.loads(route)

    def not_planned(self, reason: str, now: float) -> None:
        """No other way is known yet."""
        self._replan_at = now + REPLAN_SECONDS
        self._no_plan = reason

    def acknowledged(self, command: Command, now: float) -> list[Command]:
        match command.message:
            case Load() as load if self._is_current(command.node, load.ticket):
                if self._targets.is_in(command.node, TargetState.COMMANDED):
                    self._targets.move(command.node, TargetState.ACCEPTED)
                return self._sends(now)
            case Serve():
                return self._serving(command.node, now)
        return []

    def _sends(self, now: float) -> list[Command]:
        """Sources send once all who receive through them are ready."""
        commands = []
        for route in self._routes:
            ready = not any(self._targets.is_in(worker, TargetState.COMMANDED) for worker in route.chain.targets)
            if ready and self._receivers(route) and route.ticket not in self._sent:
                self._sent.add(route.ticket)
                self._note("commanded", now)
                commands.append(self._orders.send(route))
        return commands

    def refused(self, command: Command, error: str, now: float) -> list[Command]:
        node = command.node
        match command.message:
            case Load() as load if self._is_current(node, load.ticket):
                return self._fail([node], f"{node} did not load: {error}", now)
            case Send() as send:
                routes = [route for route in self._routes if route.ticket == send.ticket]
                for route in routes:
                    self._strand(self._receivers(route), f"{node} did not send: {error}", node)
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
            return self._broken(event, now)
        self._progress = now
        self._note("first_byte", event.first_byte_at or event.at, node)
        return self._whole(node, event.at) if event.state == "whole" else []

    def _broken(self, event: Transfer, now: float) -> list[Command]:
        route = self._route_to(event.node)
        if route is None or route.ticket != event.ticket:
            return []  # of a transfer that has been replaced
        lost = [event.node, *route.behind(event.node)]
        self._strand(lost, event.error or "the transfer broke off", route.upstream_of(event.node))
        return self._sends(now)

    def on_progress(self, now: float) -> None:
        self._progress = now

    def on_report(self, report: WorkerReport, now: float) -> list[Command]:
        if self.ended or report.id not in self._targets or report.instance not in self.instances:
            return []
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
        for route in self._routes:
            if route.chain.source == gone:
                self._strand(self._receivers(route), error, gone)
        return self._fail([gone], error, now)

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
        """Who receives does so along one route, who is stranded or failed along none. Raises InvariantBroken."""
        check(self._broken_invariants())

    def _broken_invariants(self) -> Iterator[str]:
        routed = [worker for route in self._routes for worker in route.chain.targets]
        for worker in self._targets.all_in(*RECEIVING):
            if routed.count(worker) != 1:
                yield f"{self.id}: {worker} receives along {routed.count(worker)} routes"
        for worker in self._targets.all_in(TargetState.STRANDED, TargetState.FAILED):
            if worker in routed:
                yield f"{self.id}: {worker} receives nothing and has a route"
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

    def _strand(self, workers: Iterable[str], why: str, upstream: str = "") -> None:
        """These receive nothing any more, until there is another plan; better not from `upstream` again."""
        stranded = [worker for worker in workers if self._targets.is_in(worker, *RECEIVING)]
        if not stranded:
            return
        self._avoid.add(upstream)
        for worker in stranded:
            self._targets.move(worker, TargetState.STRANDED)
            self._stranded[worker] = why
        left = (route.without(stranded) for route in self._routes)
        self._routes = [route for route in left if route.chain.targets]

    def _fail(self, workers: Iterable[str], error: str, now: float) -> list[Command]:
        """Give these up, with the other ranks of their instances; who received through them is stranded."""
        hit = [one for one in self._orders.plan.instances if set(one.ranks) & set(workers)]
        failing = [worker for one in hit for worker in one.ranks if self._targets.is_in(worker, *UNDER_WAY)]
        if not failing:
            return []
        for worker in failing:
            self._targets.move(worker, TargetState.FAILED)
            self._stranded.pop(worker, None)
        sources = [route.chain.source for route in self._routes]
        for worker in failing:
            self._leave(worker, error)
        self._errors.append(error)
        over = not self._targets.all_in(TargetState.STRANDED, *RECEIVING)
        aborts = self._orders.aborts([*failing, *(sources if over else [])], error)
        self._finish(now)
        return [*aborts, *self._sends(now)]

    def _leave(self, worker: str, error: str) -> None:
        for route in list(self._routes):
            self._strand(route.behind(worker), error, worker)
        left = (route.without([worker]) for route in self._routes)
        self._routes = [route for route in left if route.chain.targets]

    def _finish(self, now: float) -> None:
        if len(self._targets.all_in(*ENDED)) == len(self._targets):
            serving = len(self._targets.all_in(TargetState.SERVING))
            self._end(self._errors, now, f"{serving} new instances serve")

    def _receivers(self, route: Route) -> list[str]:
        return [worker for worker in route.chain.targets if self._targets.is_in(worker, *RECEIVING)]

    def _route_to(self, target: str) -> Route | None:
        return next((route for route in self._routes if target in route.chain.targets), None)

    def _is_current(self, target: str, ticket: int) -> bool:
        route = self._route_to(target)
        return route is not None and route.ticket == ticket

    def _children(self, node: str) -> int:
        return sum(bool(route.behind(node)) for route in self._routes if self._receivers(route))
