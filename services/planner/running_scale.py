"""What every scale has: its lifecycle, its record, and how it learns what happens; and the changes of roles that some
have. Pure; times are wall times.

A scale never waits. Events go in: answers to commands, transfers, reports, leases and time. Commands come out.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from livescale.shared.messages.disaggregation import ChangeRole
from livescale.shared.messages.live import Help
from livescale.shared.messages.membership import LeaseChanged, Role, WorkerReport
from livescale.shared.messages.model_parallel import Pipeline, PipelineOver
from livescale.shared.messages.scaling import Decision, Phase, RoleMove, ScaleRecord, ScaleState
from livescale.shared.messages.transfers import Abort, BlockReady, Drain, InstanceServing, Load, Send, Serve, Transfer
from livescale.shared.policy.invariants import StateMachine

MOVES: StateMachine[ScaleState] = StateMachine(
    "a scale",
    {
        "planned": frozenset({"loading", "draining", "switching", "failed"}),
        "loading": frozenset({"done", "failed"}),
        "draining": frozenset({"done", "failed"}),
        "switching": frozenset({"done", "failed"}),
        "done": frozenset(),
        "failed": frozenset(),
    },
)

SETTLED = ("switched", "not_switched")  # phases of a change of roles that is awaited no more


@dataclass(frozen=True)
class NodeCommand:
    """A message to a worker or host, and why it is sent.

    The node's answer comes back by `RunningScale.acknowledged` or `refused`.
    """

    node: str
    message: Load | Send | Serve | Drain | Abort | Help | Pipeline | PipelineOver | ChangeRole
    reason: str


class RunningScale:
    """One scale, from its decision to its outcome. Its methods return the commands that follow from an event."""

    def __init__(self, id: str, decision: Decision, instances: list[str]) -> None:
        self.id = id
        self.model = decision.model
        self.instances = instances
        self.state: ScaleState = "planned"
        self.decision = decision
        self._phases = [Phase(name="decided", at=decision.at)]
        self._outcome = ""
        self._changed = True
        self._end_is_told = False

    @property
    def ended(self) -> bool:
        """Whether the scale is over, be it done or failed."""
        return self.state in ("done", "failed")

    @property
    def coming(self) -> frozenset[str]:
        """The instances that this scale is going to add."""
        return frozenset()

    @property
    def leaving(self) -> frozenset[str]:
        """The instances that this scale is going to remove."""
        return frozenset()

    @property
    def moving(self) -> dict[str, Role]:
        """The roles that instances are going to have, by id, where no report says so yet."""
        return {}

    @property
    def reserved(self) -> frozenset[str]:
        """The workers that no other plan may take."""
        return frozenset()

    @abstractmethod
    def start(self, now: float) -> list[NodeCommand]:
        """Begin the scale, and return the first commands."""

    @abstractmethod
    def acknowledged(self, command: NodeCommand, now: float) -> list[NodeCommand]:
        """Note that the node has accepted a command."""

    @abstractmethod
    def refused(self, command: NodeCommand, error: str, now: float) -> list[NodeCommand]:
        """Note that the node refused a command, or did not answer one that is not wanted any more."""

    def wants(self, command: NodeCommand) -> bool:
        """Say whether to repeat a command that was not answered in time. A command that arrives twice does no harm."""
        return False

    @abstractmethod
    def on_report(self, report: WorkerReport, now: float) -> list[NodeCommand]:
        """Learn from a worker's heartbeat, which tells what a lost event would have told."""

    @abstractmethod
    def on_lease(self, change: LeaseChanged, now: float) -> list[NodeCommand]:
        """Learn that the registry judges a process to be alive, suspect or dead."""

    @abstractmethod
    def on_instance(self, event: InstanceServing, now: float) -> list[NodeCommand]:
        """Learn that an instance serves, has made its first token, or is spare again."""

    def on_transfer(self, event: Transfer, now: float) -> list[NodeCommand]:
        """Learn how the transfer to a target gets on."""
        return []

    def on_block(self, block: BlockReady, now: float) -> list[NodeCommand]:
        """Learn that a block of this scale is ready at a worker."""
        return []

    def tick(self, now: float) -> list[NodeCommand]:
        """Check what is overdue. It is called every half second."""
        return []

    def excuse(self, seconds: float) -> None:
        """Do not count these seconds as silence: the planner itself slept and heard nothing."""

    def follow_up(self, now: float) -> list[NodeCommand]:
        """Return what else is to be commanded now. It is called after every event."""
        return []

    def record(self) -> ScaleRecord:
        """Return the scale as it is told to others and saved."""
        return ScaleRecord(
            id=self.id,
            decision=self.decision,
            state=self.state,
            instances=self.instances,
            phases=list(self._phases),
            outcome=self._outcome,
        )

    def _continue(self, record: ScaleRecord) -> None:
        """Set the state and the phases to those that an earlier planner recorded."""
        self.state, self._phases, self._outcome = record.state, list(record.phases), record.outcome

    def take_end(self) -> bool:
        """Say whether it has ended since this was last asked."""
        is_news, self._end_is_told = self.ended and not self._end_is_told, self.ended
        return is_news

    def take_change(self) -> bool:
        """Say whether the record has changed since this was last asked."""
        changed, self._changed = self._changed, False
        return changed

    def _note(self, name: str, at: float, node: str | None = None) -> None:
        """Add a phase, unless this node has it already."""
        if not any(phase.name == name and phase.node == node for phase in self._phases):
            self._note_again(name, at, node)

    def _explain(self, name: str, node: str, detail: str) -> None:
        """Add a detail to a phase that was noted before the detail was known."""
        for index, phase in enumerate(self._phases):
            if (phase.name, phase.node) == (name, node):
                self._phases[index] = replace(phase, detail=detail)
                self._changed = True

    def _note_again(self, name: str, at: float, node: str | None, detail: str = "") -> None:
        """Add a phase that may happen to the same node several times."""
        self._phases.append(Phase(name=name, at=at, node=node, detail=detail))
        self._changed = True

    def _move(self, state: ScaleState) -> None:
        self.state = MOVES.advance(self.state, state)
        self._changed = True

    def _end(self, errors: list[str], now: float, success: str) -> None:
        self._outcome = "; ".join(errors) or success
        if errors:
            self._note("failed", now)
        self._move("failed" if errors else "done")


class RoleMoves:
    """The changes of roles in one scale: which of them are done, and which are still awaited.

    A worker is told again until it answers. Its own reports say that it has the role, whatever became of the answer.
    """

    def __init__(self, moves: Sequence[RoleMove] = ()) -> None:
        self.all = list(moves)
        self._awaited = {move.worker: move for move in moves}

    @property
    def awaited(self) -> list[RoleMove]:
        """The changes that no report has shown yet, and that may still come."""
        return list(self._awaited.values())

    def commands(self) -> Iterator[NodeCommand]:
        """Yield the orders for all that are awaited. An order that is repeated changes nothing."""
        for move in self._awaited.values():
            order = ChangeRole(instance=move.instance, role=move.role, epoch=move.epoch)
            yield NodeCommand(move.worker, order, move.reason)

    def settle(self, worker: str) -> RoleMove | None:
        """Await this worker's change no longer. Returns it, if it was awaited."""
        return self._awaited.pop(worker, None)

    def awaits(self, worker: str) -> bool:
        return worker in self._awaited

    def shown(self, report: WorkerReport) -> bool:
        """Whether a report shows a change that was awaited."""
        move = self._awaited.get(report.id)
        return move is not None and (report.instance, report.role) == (move.instance, move.role)

    def ended_by(self, report: WorkerReport) -> bool:
        """Whether a report shows that an awaited change will not come: the worker has another instance, or none."""
        move = self._awaited.get(report.id)
        return move is not None and report.epoch >= move.epoch and report.instance != move.instance

    def is_gone(self, change: LeaseChanged) -> bool:
        """Whether a change is awaited of a worker that is dead, or was started anew."""
        move = self._awaited.get(change.id)
        return move is not None and (change.state == "dead" or change.epoch > move.epoch)


class SwitchingScale(RunningScale):
    """A scale in which instances may get other roles; `moves` are these changes."""

    def __init__(self, id: str, decision: Decision, instances: list[str], moves: Sequence[RoleMove]) -> None:
        super().__init__(id, decision, instances)
        self._moves = RoleMoves(moves)

    @property
    def moving(self) -> dict[str, Role]:
        return {} if self.ended else {move.instance: move.role for move in self._moves.awaited}

    def record(self) -> ScaleRecord:
        return replace(super().record(), moves=self._moves.all)

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
