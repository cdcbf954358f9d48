"""A scale in as a state machine: instances drain until they have finished their requests. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from livescale.services.planner.fleet import ServingInstance
from livescale.services.planner.running_scale import NodeCommand, RunningScale
from livescale.shared.messages.membership import LeaseChanged, WorkerReport
from livescale.shared.messages.scaling import Decision, ScaleRecord
from livescale.shared.messages.transfers import Drain, InstanceServing, Serve


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
        self._alone = {one.ranks[0]: one for one in drained if len(one.ranks) == 1}
        self._recalled: dict[str, str] = {}  # instances that are to serve again, by worker, until they say so
        self._errors: list[str] = []

    @property
    def leaving(self) -> frozenset[str]:
        return frozenset() if self.ended else frozenset(self.instances)

    @property
    def coming(self) -> frozenset[str]:
        return frozenset() if self.ended else frozenset(self._recalled.values())

    def may_recall(self, version: str) -> list[str]:
        """Return the workers whose instances still drain and could serve this version again. Only a model that had more
        than it needed lets any go that it would take back."""
        if self.ended or self.decision.rule not in ("idle", "operator"):
            return []
        return [worker for worker, one in self._alone.items() if worker in self._busy and one.version == version]

    def recall(self, workers: Iterable[str], why: str, now: float) -> list[NodeCommand]:
        """Have instances serve again instead of draining: it moves no parameters."""
        commands = []
        for worker in workers:
            instance = self._recalled[worker] = self._busy.pop(worker)
            self.instances = [one for one in self.instances if one != instance]
            self._note_again("recalled", now, worker, why)
            order = Serve(plan_id=self.id, instance=instance, epoch=self._epochs[worker], recall=True)
            commands.append(NodeCommand(worker, order, why))
        return commands

    def yield_recalled(self, instances: AbstractSet[str], now: float) -> None:
        """Leave instances that this scale recalled to another one, which drains them again: an order to serve that is
        sent once more would come after the other's order to drain."""
        for worker in [worker for worker, instance in self._recalled.items() if instance in instances]:
            self._not_recalled(worker, "another scale drains it again", now)

    def start(self, now: float) -> list[NodeCommand]:
        self._move("draining")
        self._note("planned", now)
        return self._drains()

    def take_over(self, record: ScaleRecord, now: float) -> list[NodeCommand]:
        """Continue a scale in that an earlier planner began. All are told again, as a worker that drains goes on
        draining."""
        self._continue(record)
        self.instances = record.instances
        self._look(now)
        return self._drains()

    def _drains(self) -> list[NodeCommand]:
        return [
            NodeCommand(
                worker,
                Drain(instance=instance, epoch=self._epochs[worker], plan_id=self.id),
                "fewest requests of the model",
            )
            for worker, instance in self._busy.items()
        ]

    def acknowledged(self, command: NodeCommand, now: float) -> list[NodeCommand]:
        if command.node in self._busy:
            self._note("commanded", now, command.node)
        return []

    def refused(self, command: NodeCommand, error: str, now: float) -> list[NodeCommand]:
        if isinstance(command.message, Serve):
            return self._not_recalled(command.node, error, now)
        if command.node in self._busy:
            self._errors.append(f"{command.node} did not drain: {error}")
        return self._left(command.node, now)

    def wants(self, command: NodeCommand) -> bool:
        waiting = self._recalled if isinstance(command.message, Serve) else self._busy
        return command.node in waiting and not self.ended

    def on_report(self, report: WorkerReport, now: float) -> list[NodeCommand]:
        recalled = self._recalled.get(report.id)
        if recalled is not None and report.instance != recalled:
            return self._not_recalled(report.id, "it was spare already", now)
        if recalled is not None and report.state == "serving":
            del self._recalled[report.id]
            self._look(now)
        leaves = report.id in self._busy and report.instance != self._busy[report.id]
        return self._left(report.id, now) if leaves else []

    def on_lease(self, change: LeaseChanged, now: float) -> list[NodeCommand]:
        if change.state == "dead" and change.id in self._recalled:
            return self._not_recalled(change.id, f"it is gone: {change.reason}", now)
        gone = change.state == "dead" or change.epoch > self._epochs.get(change.id, change.epoch)
        return self._left(change.id, now) if gone else []

    def on_instance(self, event: InstanceServing, now: float) -> list[NodeCommand]:
        spare = event.what == "spare" and self._busy.get(event.worker) == event.instance
        return self._left(event.worker, event.at, _tell_requests(event)) if spare else []

    def tick(self, now: float) -> list[NodeCommand]:
        """Fail if draining takes too long. The time counts from the decision, so that a successor does not begin
        anew."""
        lasts = now - self.decision.at
        if not self.ended and lasts >= self._timeout_seconds:
            self._errors.append(f"{', '.join(self._busy)} did not finish draining within {lasts:.0f} s")
            self._end(self._errors, now, "")
        return []

    def _left(self, worker: str, at: float, detail: str = "") -> list[NodeCommand]:
        if self._busy.pop(worker, None) is not None:
            self._note("spare", at, worker)
            self._explain("spare", worker, detail)
            self._look(at)
        return []

    def _not_recalled(self, worker: str, why: str, at: float) -> list[NodeCommand]:
        """Go on without an instance that could not be recalled: it drains to its end, or is gone, or another scale
        drains it."""
        if self._recalled.pop(worker, None) is not None:
            self._note_again("not_recalled", at, worker, why)
            self._look(at)
        return []

    def _look(self, at: float) -> None:
        if not (self._busy or self._recalled or self.ended):
            self._end(self._errors, at, f"{len(self.instances)} instances drained")


def _tell_requests(event: InstanceServing) -> str:
    """Say what became of the requests of an instance that has drained: those that moved, and why others did not."""
    told = [f"others went on with {event.moved_requests} requests"] if event.moved_requests else []
    told += [f"{event.kept_requests} stayed: {event.kept_because}"] if event.kept_requests else []
    return "; ".join(told)
