"""What every scale has: its lifecycle, its record, and how it hears of the world. Pure; times are wall times.

A scale never waits: events go in (answers to commands, transfers, reports, leases, time), commands come out.
"""

from abc import abstractmethod
from dataclasses import dataclass

from msgspec.structs import replace

from livescale.shared.messages.live import Help
from livescale.shared.messages.membership import LeaseChanged, WorkerReport
from livescale.shared.messages.pipelines import Pipeline, PipelineOver
from livescale.shared.messages.scaling import Decision, Phase, ScaleRecord, ScaleState
from livescale.shared.messages.transfers import Abort, BlockReady, Drain, InstanceServing, Load, Send, Serve, Transfer
from livescale.shared.policy.state_machine import StateMachine

MOVES: StateMachine[ScaleState] = StateMachine(
    "a scale",
    {
        "planned": frozenset({"loading", "draining", "failed"}),
        "loading": frozenset({"done", "failed"}),
        "draining": frozenset({"done", "failed"}),
        "done": frozenset(),
        "failed": frozenset(),
    },
)


@dataclass(frozen=True)
class Command:
    """Tell this worker or host; its answer comes back by `acknowledged` or `refused`."""

    node: str
    message: Load | Send | Serve | Drain | Abort | Help | Pipeline | PipelineOver
    reason: str


class Scale:
    """One scale, from its decision to its outcome."""

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
        return self.state in ("done", "failed")

    @property
    def coming(self) -> frozenset[str]:
        """Instances that this scale is going to add."""
        return frozenset()

    @property
    def leaving(self) -> frozenset[str]:
        """Instances that this scale is going to take away."""
        return frozenset()

    @property
    def reserved(self) -> frozenset[str]:
        """Workers that no other plan may take."""
        return frozenset()

    @abstractmethod
    def start(self, now: float) -> list[Command]:
        """The first commands."""

    @abstractmethod
    def acknowledged(self, command: Command, now: float) -> list[Command]:
        """A command was taken."""

    @abstractmethod
    def refused(self, command: Command, error: str, now: float) -> list[Command]:
        """A command was refused, or not answered although it was not wanted any more."""

    def wants(self, command: Command) -> bool:
        """Whether a command that was not answered in time is to be told again. Told twice it does no harm."""
        return False

    @abstractmethod
    def on_report(self, report: WorkerReport, now: float) -> list[Command]:
        """A worker's heartbeat: what an event that got lost would have said."""

    @abstractmethod
    def on_lease(self, change: LeaseChanged, now: float) -> list[Command]:
        """The registry's judgement of a process."""

    @abstractmethod
    def on_instance(self, event: InstanceServing, now: float) -> list[Command]:
        """An instance serves, made its first token, or is gone."""

    def on_transfer(self, event: Transfer, now: float) -> list[Command]:
        """How parameters get on."""
        return []

    def on_block(self, block: BlockReady, now: float) -> list[Command]:
        """A block of this scale's is ready somewhere."""
        return []

    def tick(self, now: float) -> list[Command]:
        """Time goes by."""
        return []

    def excuse(self, seconds: float) -> None:
        """The planner slept for so long: it heard of nothing meanwhile."""

    def follow_up(self, now: float) -> list[Command]:
        """After every event: what else is to be said now."""
        return []

    def record(self) -> ScaleRecord:
        return ScaleRecord(
            id=self.id,
            decision=self.decision,
            state=self.state,
            instances=self.instances,
            phases=list(self._phases),
            outcome=self._outcome,
        )

    def _continue(self, record: ScaleRecord) -> None:
        """Be where an earlier planner left this scale."""
        self.state, self._phases, self._outcome = record.state, list(record.phases), record.outcome

    def take_end(self) -> bool:
        """Whether it has ended since this was last asked."""
        is_news, self._end_is_told = self.ended and not self._end_is_told, self.ended
        return is_news

    def take_change(self) -> bool:
        """Whether the record has changed since this was last asked."""
        changed, self._changed = self._changed, False
        return changed

    def _note(self, name: str, at: float, node: str | None = None) -> None:
        """Add a phase, once a node."""
        if not any(phase.name == name and phase.node == node for phase in self._phases):
            self._note_again(name, at, node)

    def _explain(self, name: str, node: str, detail: str) -> None:
        """What becomes known of a phase after it was noted."""
        for index, phase in enumerate(self._phases):
            if (phase.name, phase.node) == (name, node):
                self._phases[index] = replace(phase, detail=detail)
                self._changed = True

    def _note_again(self, name: str, at: float, node: str | None, detail: str = "") -> None:
        """Add a phase that may happen to a node several times."""
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
