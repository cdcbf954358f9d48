"""A scale that only gives instances other roles. Pure."""

from collections.abc import Sequence

from livescale.services.planner.running_scale import NodeCommand, SwitchingScale
from livescale.shared.messages.membership import LeaseChanged, WorkerReport
from livescale.shared.messages.scaling import Decision, RoleMove, ScaleRecord
from livescale.shared.messages.transfers import InstanceServing

LONGEST_SECONDS = 5.0  # a worker that lives answers much sooner


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
