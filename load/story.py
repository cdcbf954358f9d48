"""What happened while a load ran, put together from the bus's events. Pure: messages in, facts out.

All times are seconds since the epoch, as the events carry them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from math import inf

import msgspec

from livescale.load.records import RequestRecord
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import LeaseChanged, RouterReport, WorkerReport, WorkerState
from livescale.shared.messages.message import Message
from livescale.shared.messages.scaling import Decision, ScaleRecord
from livescale.shared.messages.transfers import BlockReady

# A worker without a report for this long is no longer counted.
SILENT_SECONDS = 5.0
# The source of a worker that no path of its plan leads to: it had kept the parameters.
KEPT = "itself"


class QueuePoint(msgspec.Struct, frozen=True):
    """The model's requests at one time: those that wait for their prefill, anywhere, and those being answered. `shared`
    are at instances that still load, for others to take over."""

    at: float
    waiting: int
    running: int
    shared: int = 0


class HandOff(msgspec.Struct, frozen=True):
    """`source` took a request over, with so many `layers` of it run."""

    at: float
    source: str
    request_id: str
    layers: int


class Newcomer(msgspec.Struct, frozen=True):
    """A worker that took up service in a scale-out, from decision to first token. None is not (yet) known, or was not:
    only a worker that is live takes requests before its parameters are whole, when the first layer is there
    (`live_at`), runs it (`first_layer_at`), and hands requests over. `predicted_at`: when it should have been whole, by
    its plan."""

    instance: str
    worker: str
    source: str
    decided_at: float
    blocks: list[tuple[float, int]]
    total_blocks: int | None
    first_byte_at: float | None
    whole_at: float | None
    serving_at: float | None
    first_token_at: float | None
    live_at: float | None = None
    first_layer_at: float | None = None
    hand_offs: list[HandOff] = []
    predicted_at: float | None = None

    def since_decision(self, at: float | None) -> float | None:
        return None if at is None else at - self.decided_at

    @property
    def handed_over(self) -> Counter[str]:
        """How many requests each of those that helped took over."""
        return Counter(each.source for each in self.hand_offs)

    def shared_token_at(self, records: Iterable[RequestRecord]) -> float | None:
        """When a client had the first token of a request of which this worker, not yet whole, had run layers, and
        another worker ran the rest."""
        whole_at = inf if self.whole_at is None else self.whole_at
        handed_over = {each.request_id for each in self.hand_offs if each.layers and each.at <= whole_at}
        times = [each.token_at[0] for each in records if each.token_at and request_id(each) in handed_over]
        return min(times, default=None)


class Story:
    """Takes events in as they come and answers for one model."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.workers: dict[str, WorkerReport] = {}
        self.decisions: list[Decision] = []
        self.queue: list[QueuePoint] = []
        self.scales: dict[str, ScaleRecord] = {}
        self.deaths: list[LeaseChanged] = []
        self._states: dict[str, list[tuple[float, WorkerState]]] = defaultdict(list)
        self._heard: dict[str, float] = {}
        self._blocks: dict[tuple[str, str], list[BlockReady]] = defaultdict(list)
        self._hand_offs: dict[tuple[str, str], list[HandOff]] = defaultdict(list)

    def on_message(self, message: Message, at: float) -> None:
        """One event or heartbeat, received at `at`; those of other models and unknown kinds are passed over."""
        match message:
            case WorkerReport():
                self._on_worker(message, at)
            case RouterReport():
                self._on_queues(message, at)
            case Decision(model=self._model):
                self.decisions.append(message)
            case ScaleRecord() if message.decision.model == self._model:
                self.scales[message.id] = message
            case BlockReady(model=self._model):
                self._blocks[message.plan_id, message.worker].append(message)
            case RequestsMoved(previous=target) if target in self.workers and target != message.worker:
                self._on_moved(message, self.workers[target].plan_id or "", at)
            case LeaseChanged(state="dead"):
                self.deaths.append(message)
            case _:
                pass

    def _on_worker(self, report: WorkerReport, at: float) -> None:
        self.workers[report.id] = report
        self._heard[report.id] = at
        states = self._states[report.id]
        if not states or states[-1][1] != report.state:
            states.append((at, report.state))

    def _on_queues(self, report: RouterReport, at: float) -> None:
        for queue in report.queues:
            if queue.model == self._model:
                # The router admits more than an engine has begun with: to the user both are waiting.
                workers = [worker for worker in self.workers.values() if worker.model == self._model]
                at_workers = sum(worker.load.waiting_requests for worker in workers if worker.load)
                running = max(0, queue.running - at_workers)
                shared = sum(worker.live_waiting for worker in workers if worker.state == "live")
                self.queue.append(QueuePoint(at, queue.waiting_requests + at_workers, running, shared))

    def _on_moved(self, moved: RequestsMoved, plan_id: str, at: float) -> None:
        """From the worker that loads for this plan, or has."""
        hand_offs = (HandOff(at, moved.worker, id, moved.layers) for id in moved.request_ids)
        self._hand_offs[plan_id, moved.previous] += hand_offs

    def present(self, now: float) -> list[WorkerReport]:
        """The last reports of workers that were heard of lately, by id."""
        return [self.workers[id] for id in sorted(self.workers) if now - self._heard[id] < SILENT_SECONDS]

    def progress(self, worker: str) -> tuple[int, int] | None:
        """Blocks ready and in all, of what `worker` loads now."""
        plan_id = self.workers[worker].plan_id if worker in self.workers else None
        last = max(self._blocks[plan_id or "", worker], key=lambda event: event.at, default=None)
        return None if last is None else (last.ready, last.total)

    def state_counts(self) -> list[tuple[float, Counter[str]]]:
        """How many workers are in each state, from each change on."""
        changes = sorted((at, worker, state) for worker, states in self._states.items() for at, state in states)
        current: dict[str, str] = {}
        counts = []
        for at, worker, state in changes:
            current[worker] = state
            counts.append((at, Counter(current.values())))
        return counts

    def newcomers(self, since: float) -> list[Newcomer]:
        """Workers of instances that were decided on after `since`, in order of the decisions."""
        found = []
        for record in sorted(self.scales.values(), key=lambda record: (record.decision.at, record.id)):
            if record.plan is None or record.decision.at < since:
                continue
            sources = {target: path[0] for path in record.plan.paths for target in path[1:]}
            for instance in record.plan.instances:
                for worker in instance.ranks:
                    found.append(self._newcomer(record, instance.id, worker, sources.get(worker, KEPT)))
        return found

    def _newcomer(self, record: ScaleRecord, instance: str, worker: str, source: str) -> Newcomer:
        assert record.plan is not None
        blocks = sorted(self._blocks[record.plan.id, worker], key=lambda event: event.at)
        # The planner keeps the times, also of what it had to learn in another way because an event got lost.
        times = {phase.name: phase.at for phase in record.phases if phase.node == worker}
        begun = next((phase.at for phase in record.phases if phase.name == "commanded"), None)
        predicted = record.plan.predicted.get(worker)
        return Newcomer(
            instance=instance,
            worker=worker,
            source=source,
            decided_at=record.decision.at,
            blocks=[(event.at, event.ready) for event in blocks],
            total_blocks=blocks[0].total if blocks else None,
            first_byte_at=times.get("first_byte"),
            whole_at=times.get("whole"),
            serving_at=times.get("serving"),
            first_token_at=times.get("first_token"),
            live_at=times.get("live"),
            first_layer_at=times.get("first_layer"),
            hand_offs=self._hand_offs[record.plan.id, worker],
            predicted_at=None if begun is None or predicted is None else begun + predicted,
        )

    def settled(self) -> bool:
        """Whether every worker is either spare or serves, and none of them moves."""
        return all(report.state in ("spare", "serving") for report in self.workers.values())

    def serving(self) -> int:
        """The number of workers that serve the model now."""
        return sum(report.state == "serving" and report.model == self._model for report in self.workers.values())


def request_id(record: RequestRecord) -> str:
    """The name of a request among the processes, unless it was submitted again."""
    return "req-" + record.id.partition("-")[2]
