"""A scale that only gives instances other roles. Pure."""

from collections.abc import Sequence

from msgspec import structs

from livescale.services.planner.role_moves import RoleMoves
from livescale.services.planner.running_scale import NodeCommand, RunningScale
from livescale.shared.messages.disaggregation import ChangeRole
from livescale.shared.messages.membership import LeaseChanged, Role, WorkerReport
from livescale.shared.messages.scaling import Decision, RoleMove, ScaleRecord
from livescale.shared.messages.transfers import InstanceServing

LONGEST_SECONDS = 5.0  # a worker that lives answers much sooner


class SwitchingScale(RunningScale):
    """A scale in which instances may get other roles; `moves` are these changes."""

    def __init__(self, id: str, decision: Decision, instances: list[str], moves: Sequence[RoleMove]) -> None:
        super().__init__(id, decision, instances)
        self._moves = RoleMoves(moves)

    @property
    def moving(self) -> dict[str, Role]:
        return {} if self.ended else {move.instance: move.role for move in self._moves.awaited}

    def record(self) -> ScaleRecord:
        return structs.replace(super().record(), moves=self._moves.all)

    def wants(self, command: NodeCommand) -> bool:
        return isinstance(command.message, ChangeRole) and self._moves.awaits(command.node)

    def refused(self, command: NodeCommand, error: str, now: float) -> list[NodeCommand]:
        if isinstance(command.message, ChangeRole):
            self._not_moved(command.node, f"it did not take the role: {error}", now)
        return []

    def on_report(self, report: WorkerReport, now: float) -> list[NodeCommand]:
        if self._moves.shown(report) and (move := self._moves.settle(report.id)) is not None:
            self._note_again("switched", now, move.worker, f"{move.before} -> {move.role}")
        elif self._moves.ended_by(report):
            self._not_moved(report.id, "its instance is gone", now)
        return []

    def on_lease(self, change: LeaseChanged, now: float) -> list[NodeCommand]:
        if self._moves.is_gone(change):
            self._not_moved(change.id, f"it is gone: {change.reason}", now)
        return []

    def _not_moved(self, worker: str, why: str, now: float) -> None:
        if self._moves.settle(worker) is not None:
            self._note_again("not_switched", now, worker, why)

    def _begin_moves(self, record: ScaleRecord | None = None) -> list[NodeCommand]:
        """The orders of all changes. After a `record` of an earlier planner, of those that it had not seen done."""
        done = [] if record is None else [phase.node for phase in record.phases if phase.name in SETTLED]
        for worker in done:
            self._moves.settle(worker or "")
        return list(self._moves.commands())


SETTLED = ("switched", "not_switched")


class RoleSwitch(SwitchingScale):
    """Has instances take other roles. It ends when each has said so or is gone, and soon in any case."""

    def __init__(self, id: str, decision: Decision, moves: Sequence[RoleMove], now: float) -> None:
        super().__init__(id, decision, [], moves)
        self._began = now

    def start(self, now: float) -> list[NodeCommand]:
        self._move("switching")
        self._note("planned", now)
        return self._begin_moves()

    def take_over(self, record: ScaleRecord, now: float) -> list[NodeCommand]:
        """Continue what an earlier planner began. Workers are told again, as its orders may not have come."""
        self._continue(record)
        commands = self._begin_moves(record)
        self._look(now)
        return commands

    def acknowledged(self, command: NodeCommand, now: float) -> list[NodeCommand]:
        return []

    def refused(self, command: NodeCommand, error: str, now: float) -> list[NodeCommand]:
        super().refused(command, error, now)
        return self._look(now)

    def on_report(self, report: WorkerReport, now: float) -> list[NodeCommand]:
        super().on_report(report, now)
        return self._look(now)

    def on_lease(self, change: LeaseChanged, now: float) -> list[NodeCommand]:
        super().on_lease(change, now)
        return self._look(now)

    def on_instance(self, event: InstanceServing, now: float) -> list[NodeCommand]:
        return []

    def excuse(self, seconds: float) -> None:
        self._began += seconds

    def tick(self, now: float) -> list[NodeCommand]:
        if now - self._began >= LONGEST_SECONDS:
            for move in self._moves.awaited:
                self._not_moved(move.worker, f"nothing was heard of it for {LONGEST_SECONDS:g} s", now)
        return self._look(now)

    def _look(self, now: float) -> list[NodeCommand]:
        if not self.ended and not self._moves.awaited:
            lost = [f"{one.node}: {one.detail}" for one in self._phases if one.name == "not_switched"]
            count = len(self._moves.all)
            self._end(lost, now, f"{count} instances have another role" if count > 1 else "1 instance has another role")
        return []
