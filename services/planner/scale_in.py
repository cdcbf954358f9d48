"""A scale in as a state machine: instances drain until they have finished their requests. Pure."""

from collections.abc import Mapping, Sequence

from livescale.services.planner.fleet import ServingInstance
from livescale.services.planner.running_scale import NodeCommand, RunningScale
from livescale.shared.messages.membership import LeaseChanged, WorkerReport
from livescale.shared.messages.scaling import Decision, ScaleRecord
from livescale.shared.messages.transfers import Drain, InstanceServing


class ScaleIn(RunningScale):
    """Drains instances. It ends when their workers are spare or dead, and at the latest after `timeout_seconds`.

    Normally the requests' own deadlines end it long before. `epochs` are those of the workers by id: a command to an
    earlier process is refused.
    """

    def __init__(
        self,
        id: str,
        decision: Decision,
        drained: Sequence[ServingInstance],
        epochs: Mapping[str, int],
        timeout_seconds: float,
    ) -> None:
        super().__init__(id, decision, [one.instance for one in drained])
        self._timeout_seconds = timeout_seconds
        self._epochs = epochs
        self._busy = {worker: one.instance for one in drained for worker in one.ranks}
        self._errors: list[str] = []

    @property
    def leaving(self) -> frozenset[str]:
        return frozenset() if self.ended else frozenset(self.instances)

    def start(self, now: float) -> list[NodeCommand]:
        self._move("draining")
        self._note("planned", now)
        return self._drains()

    def take_over(self, record: ScaleRecord, now: float) -> list[NodeCommand]:
        """Continue a scale in that an earlier planner began. All are told again, as a worker that drains goes on
        draining."""
        self._continue(record)
        self.instances = record.instances
        if not self._busy:
            self._end([], now, f"{len(self.instances)} instances drained")
        return self._drains()

    def _drains(self) -> list[NodeCommand]:
        return [
            NodeCommand(worker, Drain(instance=instance, epoch=self._epochs[worker]), "fewest requests of the model")
            for worker, instance in self._busy.items()
        ]

    def acknowledged(self, command: NodeCommand, now: float) -> list[NodeCommand]:
        if command.node in self._busy:
            self._note("commanded", now, command.node)
        return []

    def refused(self, command: NodeCommand, error: str, now: float) -> list[NodeCommand]:
        if command.node in self._busy:
            self._errors.append(f"{command.node} did not drain: {error}")
        return self._left(command.node, now)

    def wants(self, command: NodeCommand) -> bool:
        return command.node in self._busy and not self.ended

    def on_report(self, report: WorkerReport, now: float) -> list[NodeCommand]:
        leaves = report.id in self._busy and report.instance != self._busy[report.id]
        return self._left(report.id, now) if leaves else []

    def on_lease(self, change: LeaseChanged, now: float) -> list[NodeCommand]:
        gone = change.state == "dead" or change.epoch > self._epochs.get(change.id, change.epoch)
        return self._left(change.id, now) if gone else []

    def on_instance(self, event: InstanceServing, now: float) -> list[NodeCommand]:
        spare = event.what == "spare" and self._busy.get(event.worker) == event.instance
        return self._left(event.worker, event.at) if spare else []

    def tick(self, now: float) -> list[NodeCommand]:
        """Fail if draining takes too long. The time counts from the decision, so that a successor does not begin
        anew."""
        lasts = now - self.decision.at
        if not self.ended and lasts >= self._timeout_seconds:
            self._errors.append(f"{', '.join(self._busy)} did not finish draining within {lasts:.0f} s")
            self._end(self._errors, now, "")
        return []

    def _left(self, worker: str, at: float) -> list[NodeCommand]:
        if self._busy.pop(worker, None) is not None:
            self._note("spare", at, worker)
            if not self._busy and not self.ended:
                self._end(self._errors, at, f"{len(self.instances)} instances drained")
        return []
