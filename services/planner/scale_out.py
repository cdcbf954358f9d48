"""A scale out as a state machine: load the targets, let the source send, have each whole instance serve. Pure."""

from enum import StrEnum

from services.planner.orders import Orders
from services.planner.scales import Command, Scale
from shared.messages.membership import LeaseChanged, WorkerReport
from shared.messages.scaling import (
    Decision,
    InstanceServing,
    Load,
    PlannedInstance,
    Send,
    Serve,
    Transfer,
)


class TargetState(StrEnum):
    """A target's part in the scale."""

    COMMANDED = "commanded"
    ACCEPTED = "accepted"
    WHOLE = "whole"
    SERVING = "serving"
    FAILED = "failed"


MOVES: dict[TargetState, frozenset[TargetState]] = {
    TargetState.COMMANDED: frozenset({TargetState.ACCEPTED, TargetState.FAILED}),
    TargetState.ACCEPTED: frozenset({TargetState.WHOLE, TargetState.FAILED}),
    TargetState.WHOLE: frozenset({TargetState.SERVING, TargetState.FAILED}),
    TargetState.SERVING: frozenset(),
    TargetState.FAILED: frozenset(),
}

_LOADING = (TargetState.COMMANDED, TargetState.ACCEPTED)
_ENDED = (TargetState.SERVING, TargetState.FAILED)


class ScaleOut(Scale):
    """Carries out a plan."""

    def __init__(self, id: str, decision: Decision, orders: Orders, patience_seconds: float) -> None:
        plan = orders.plan
        super().__init__(id, decision, [instance.id for instance in plan.instances], plan)
        self._orders = orders
        self._instances = plan.instances
        self._chains = plan.chains
        self._targets = {w: TargetState.COMMANDED for chain in plan.chains for w in chain.targets}
        self._errors: list[str] = []
        self._sent = False
        self._patience_seconds = patience_seconds
        self._progress = decision.at

    @property
    def coming(self) -> frozenset[str]:
        return frozenset(i.id for i in self._instances if not self.ended and self._lowest(i) != TargetState.FAILED)

    @property
    def reserved(self) -> frozenset[str]:
        held = (worker for worker, state in self._targets.items() if state is not TargetState.FAILED)
        return frozenset() if self.ended else frozenset(held)

    @property
    def source(self) -> str | None:
        return None if self.ended or not self._in_state(*_LOADING) else self._chains[0].source

    @property
    def ticket(self) -> int:
        return self._orders.ticket

    def start(self, now: float) -> list[Command]:
        self._move("loading")
        self._note("planned", now)
        self._progress = now
        return list(self._orders.loads())

    def acknowledged(self, command: Command, now: float) -> list[Command]:
        match command.message:
            case Load() if self._targets[command.node] is TargetState.COMMANDED:
                self._set(command.node, TargetState.ACCEPTED)
                return [] if self._in_state(TargetState.COMMANDED) else self._send(now)
            case Serve():
                return self._serving(command.node, now)
        return []

    def _send(self, now: float) -> list[Command]:
        self._sent = True
        self._note("commanded", now)
        return self._orders.sends()

    def refused(self, command: Command, error: str, now: float) -> list[Command]:
        match command.message:
            case Load():
                return self._lost(command.node, f"{command.node} did not load: {error}", now)
            case Send():
                return self._lost(command.node, f"{command.node} did not send: {error}", now)
            case Serve():
                return self._fail([command.node], f"{command.node} did not serve: {error}", now)
        return []

    def on_transfer(self, event: Transfer, now: float) -> list[Command]:
        if self.ended:
            return []
        self._progress = now
        if event.state in ("failed", "broken"):
            return self._lost(event.node, f"{event.node}: {event.error or 'transfer failed'}", now)
        if event.node not in self._targets:
            return []
        self._note("first_byte", event.first_byte_at or event.at, event.node)
        return self._whole(event.node, event.at) if event.state == "whole" else []

    def on_progress(self, now: float) -> None:
        self._progress = now

    def on_report(self, report: WorkerReport, now: float) -> list[Command]:
        if self.ended or report.id not in self._targets or report.instance not in self.instances:
            return []
        if report.state == "serving":
            return self._serving(report.id, now)
        holding = report.holding
        if holding is not None and holding.total > 0 and len(holding.ready) == holding.total:
            return self._whole(report.id, now)
        return []

    def on_lease(self, change: LeaseChanged, now: float) -> list[Command]:
        if self.ended or not self._orders.is_gone(change):
            return []
        return self._lost(change.id, f"{change.id} is gone: {change.reason}", now)

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
        pending = self._in_state(*_LOADING, TargetState.WHOLE)
        return self._fail(pending, f"nothing arrived for {silent:.1f} s", now)

    def _whole(self, worker: str, at: float) -> list[Command]:
        if self._targets[worker] is not TargetState.ACCEPTED:
            return []
        self._set(worker, TargetState.WHOLE)
        self._note("whole", at, worker)
        instance = self._orders.instance_of(worker)
        return self._orders.serves(instance) if self._lowest(instance) is TargetState.WHOLE else []

    def _serving(self, worker: str, at: float) -> list[Command]:
        if worker not in self._targets or self.ended or self._targets[worker] is not TargetState.WHOLE:
            return []
        self._set(worker, TargetState.SERVING)
        self._note("serving", at, worker)
        self._finish(at)
        return []

    def _lost(self, node: str, error: str, now: float) -> list[Command]:
        """A node can do nothing any more: whoever was to receive through it and is not whole cannot finish."""
        if not self._sent:
            # Nothing moves yet: a new plan costs less than a chain with a hole.
            return self._fail(self._in_state(*_LOADING), error, now)
        behind = [worker for chain in self._chains for worker in _behind(node, chain.source, chain.targets)]
        stuck = [worker for worker in behind if self._targets[worker] in _LOADING]
        own = [node] if self._targets.get(node) in (*_LOADING, TargetState.WHOLE) else []
        return self._fail([*own, *stuck], error, now)

    def _fail(self, workers: list[str], error: str, now: float) -> list[Command]:
        """Give these up, with the other ranks of their instances."""
        hit = [one for one in self._instances if set(one.ranks) & set(workers)]
        failing = [w for one in hit for w in one.ranks if self._targets[w] not in _ENDED]
        if not failing:
            return []
        for worker in failing:
            self._set(worker, TargetState.FAILED)
        self._errors.append(error)
        sources = [chain.source for chain in self._chains if not self._in_state(*_LOADING)]
        aborts = self._orders.aborts([*failing, *sources], error)
        self._finish(now)
        return aborts

    def _finish(self, now: float) -> None:
        if len(self._in_state(*_ENDED)) == len(self._targets):
            serving = len(self._in_state(TargetState.SERVING))
            self._end(self._errors, now, f"{serving} new instances serve")

    def _in_state(self, *states: TargetState) -> list[str]:
        return [worker for worker, state in self._targets.items() if state in states]

    def _lowest(self, instance: PlannedInstance) -> TargetState:
        """An instance is as far as the rank that is least far; failed if one of them is."""
        states = {self._targets[worker] for worker in instance.ranks}
        return TargetState.FAILED if TargetState.FAILED in states else min(states, key=list(TargetState).index)

    def _set(self, worker: str, state: TargetState) -> None:
        if state not in MOVES[self._targets[worker]]:
            raise ValueError(f"a target cannot go from {self._targets[worker]} to {state}")
        self._targets[worker] = state


def _behind(node: str, source: str, targets: list[str]) -> list[str]:
    path = [source, *targets]
    return path[path.index(node) + 1 :] if node in path else []
