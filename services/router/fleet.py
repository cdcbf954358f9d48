"""Which workers lead instances, and what was admitted to each. Pure."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from livescale.services.router.effects import AdmitTo, Effect, Learn, Lose, StopWork
from livescale.services.router.instances import InstanceView
from livescale.services.router.requests import AdmittedRequest, LastEnds, Promises
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import LeaseChanged, WorkerReport
from livescale.shared.messages.requests import RequestsEnded, Running, Submit

# The word of a request's end and the report of its worker are on different subjects, so either may come first.
HEARD_SECONDS = 0.5


@dataclass
class PartedRequests:
    """Requests of instances that ended as planned, and of whose ends or moves this router has not heard yet.

    Each is kept for `HEARD_SECONDS`. One that is not heard of by then is lost.
    """

    _requests: dict[str, tuple[float, str, AdmittedRequest]] = field(default_factory=dict)

    def part(self, instance: InstanceView, now: float) -> None:
        """Keep the requests of an instance that is there no more."""
        for id in sorted(instance.admitted):
            if (admission := instance.release(id)) is not None:
                self._requests[id] = now + HEARD_SECONDS, instance.worker, admission

    def take(self, request_id: str) -> AdmittedRequest | None:
        """Give up a request that was heard of; None where it is not here."""
        kept = self._requests.pop(request_id, None)
        return None if kept is None else kept[2]

    def stop(self, request_id: str) -> None:
        """Note that the client of a request waits no longer."""
        if request_id in self._requests:
            self._requests[request_id][2].stop()

    def overdue(self, now: float, is_elsewhere: Callable[[str], bool]) -> Iterator[tuple[str, str, AdmittedRequest]]:
        """Give up what was not heard of in time: yield each that runs at no other worker, with its own."""
        for id, (until, worker, admission) in list(self._requests.items()):
            if until <= now:
                del self._requests[id]
                if not is_elsewhere(id):
                    yield id, worker, admission


class ServingFleet:
    """All instances, by their leading worker (rank 0). An instance is known from the time when it loads, as it may take
    requests over before it says that it serves.

    `silent_seconds`: an instance that reports no request at all for this long has none, whatever was admitted to it.
    """

    def __init__(self, silent_seconds: float) -> None:
        self._silent_seconds = silent_seconds
        self._instances: dict[str, InstanceView] = {}
        self._promises = Promises()
        self._ends = LastEnds()
        self._parted = PartedRequests()
        self._suspects: set[str] = set()
        # By worker: its last epoch that was declared dead. Reports of that epoch are ignored.
        self._dead: dict[str, int] = {}

    def of_model(self, model: str) -> list[InstanceView]:
        """The instances of a model, including those that load."""
        return [one for one in self._instances.values() if one.model == model]

    def find(self, worker: str) -> InstanceView | None:
        """The instance that this worker leads; None where none is known."""
        return self._instances.get(worker)

    def is_open(self, instance: InstanceView) -> bool:
        """Whether anything may be admitted to the instance: it is not draining, has not just refused, and is not
        suspected to be dead."""
        return instance.state != "draining" and not instance.refusing and instance.worker not in self._suspects

    def runs_at(self, request_id: str) -> str | None:
        """The worker that the request was given to; None where no worker has it."""
        return next((one.worker for one in self._instances.values() if request_id in one.admitted), None)

    def requests_at(self, worker: str, request_ids: Iterable[str]) -> Iterator[Submit]:
        """Those of the requests that are at this worker. A request that an earlier router admitted is left out, as its
        content is not known here."""
        admitted = {} if (instance := self._instances.get(worker)) is None else instance.admitted
        for request_id in request_ids:
            if request_id in admitted and (waiting := admitted[request_id].waiting) is not None:
                yield waiting.request

    def admitted(self, worker: str, request_id: str) -> list[Effect]:
        """Note that the worker took the request; one that was stopped meanwhile is stopped there now."""
        instance = self._instances.get(worker)
        admission = None if instance is None else instance.admitted.get(request_id)
        if admission is None:
            return []
        admission.confirm()
        self._ends.forget(request_id)
        return [StopWork(worker, request_id, "cancelled")] if admission.stopped else []

    def refused(self, effect: AdmitTo) -> AdmittedRequest | None:
        """Note that the worker did not take the request. Returns what was kept for it, or None if its client waits no
        longer."""
        instance = self._instances.get(effect.worker)
        admission = None if instance is None else instance.release(effect.request.request_id)
        if instance is None or admission is None:
            return None
        instance.refusing = True
        return None if admission.stopped else admission

    def stop(self, request_id: str, reason: str) -> list[Effect]:
        """Stop a request whose client waits no longer. Idempotent."""
        for id in sorted(self._instances):
            if request_id in self._instances[id].admitted:
                return _stop(self._instances[id], request_id, reason)
        self._parted.stop(request_id)
        return []

    def stop_of_gateway(self, gateway: str, reason: str) -> list[Effect]:
        """Stop all requests of a gateway that is gone."""
        effects: list[Effect] = []
        for id in sorted(self._instances):
            instance = self._instances[id]
            for request_id, admission in sorted(instance.admitted.items()):
                if admission.gateway == gateway and not admission.stopped:
                    effects += _stop(instance, request_id, reason)
        return effects

    def hears(self, report: WorkerReport) -> bool:
        """Whether the report is from a worker that lives, and not from an earlier one of the same name."""
        known = self._instances.get(report.id)
        return report.epoch > self._dead.get(report.id, 0) and (known is None or report.epoch >= known.epoch)

    def on_report(self, report: WorkerReport, now: float) -> list[Effect]:
        """Take over a worker's heartbeat; only those that this fleet `hears` are given to it."""
        self._suspects.discard(report.id)  # it was heard here; the registry's word that it lives may have been lost
        known = self._instances.get(report.id)
        effects: list[Effect] = []
        leads = report.instance is not None and report.rank == 0 and report.state != "spare"
        if known is not None and (not leads or not known.goes_on(report)):
            if report.epoch == known.epoch and report.instance != known.id:
                # It finished what it had, or others took it over.
                self._parted.part(self._instances.pop(report.id), now)
            else:
                effects = self._drop(report.id, f"{report.id} no longer serves {known.id}")
            known = None
        if leads:
            if known is None:
                known = self._instances[report.id] = InstanceView(report.id, self._promises, self._ends)
            was_serving = known.serves
            known.update(report, now)
            if known.serves and not was_serving:
                effects.append(Learn(report.id, f"{report.instance} is new here"))
            effects += self._lose_silent(known, now)
        return effects

    def expire(self, now: float) -> list[Effect]:
        """Give up the requests of instances that have ended, where no word of them came. Called regularly."""
        overdue = self._parted.overdue(now, lambda id: self.runs_at(id) is not None)
        lost = ((id, one, f"{worker} ended its instance, and does not have it") for id, worker, one in overdue)
        return [effect for id, admission, reason in lost for effect in _tell_lost(id, admission, reason)]

    def learned(self, worker: str, running: Iterable[Running], now: float, ended: Iterable[str]) -> Collection[str]:
        """Take over what a worker already runs, and what `ended` there lately; return the ids of all requests there. A
        request that runs at another worker as well stays there: both make the same tokens, and the gateway stops the
        one it does not need."""
        instance = self._instances.get(worker)
        if instance is None:
            return ()
        instance.note_ended(ended)
        instance.adopt([one for one in running if self.runs_at(one.request_id) is None], now)
        return instance.admitted.keys()

    def was_away(self) -> None:
        """Forget for how long instances have reported no request: this router heard nothing for a while."""
        for one in self._instances.values():
            one.idle_since = None

    def ask_again(self, reason: str) -> list[Effect]:
        """Ask every instance that serves what it runs, as this router may have missed something."""
        serving = [one for _, one in sorted(self._instances.items()) if one.serves]
        for one in serving:
            one.learned = False
        return [Learn(one.worker, reason) for one in serving]

    def on_ended(self, ended: RequestsEnded) -> None:
        """Note that requests left a worker, and free what was counted for them."""
        for request_id in ended.request_ids:
            instance = self._instances.get(ended.worker)
            if instance is None or instance.end(request_id) is None:
                self._end_moved(request_id, ended.worker)

    def _end_moved(self, request_id: str, worker: str) -> None:
        """Note that a request ended where its instance is there no more, or at a worker that took it over, before the
        message of that move came or after it was lost."""
        self._parted.take(request_id)
        for instance in self._instances.values():
            admission = instance.admitted.get(request_id)
            if admission is not None and (instance.was_live or admission.decode == worker):
                instance.release(request_id)

    def on_moved(self, moved: RequestsMoved, now: float) -> list[Effect]:
        """Note that a worker has taken requests over from another one, or keeps what that was to decode. Requests that
        ended meanwhile, or were lost with their worker, are not known any more."""
        previous = self._instances.get(moved.previous)
        if moved.worker == moved.previous:
            for id in moved.request_ids:
                if previous is not None:
                    previous.keep(id)
            return []
        ids = [id for id in moved.request_ids if not self._comes_late(id, moved)]
        given = {id: None if previous is None else previous.give(id) for id in ids}
        kept = {id: admission or self._parted.take(id) for id, admission in given.items()}
        found = [(id, admission) for id, admission in kept.items() if admission is not None]
        return [effect for id, admission in found for effect in self._move(moved.worker, id, admission, now)]

    def _comes_late(self, request_id: str, moved: RequestsMoved) -> bool:
        """Whether the request ended where it moved, and is being given anew to the worker from which it moved."""
        previous, worker = self._instances.get(moved.previous), self._instances.get(moved.worker)
        admission = None if previous is None else previous.admitted.get(request_id)
        if worker is None or admission is None or admission.confirmed:
            return False
        return worker.has_ended(request_id)

    def _move(self, worker: str, request_id: str, admission: AdmittedRequest, now: float) -> list[Effect]:
        instance = self._instances.get(worker)
        if instance is None:
            return _tell_lost(request_id, admission, f"{worker} took it over and is gone")
        if instance.has_ended(request_id):
            return []
        admission.confirm()  # the answer of the worker that gave it away may still be on its way
        admission.at, admission.decode = now, None
        instance.take(request_id, admission)
        return [StopWork(worker, request_id, "its client waits no longer")] if admission.stopped else []

    def on_lease(self, change: LeaseChanged) -> list[Effect]:
        """Take over the registry's judgement of a process: alive, suspect or dead."""
        if change.state == "suspect":
            self._suspects.add(change.id)
            return []
        self._suspects.discard(change.id)
        if change.state == "dead":
            self._dead[change.id] = change.epoch
        known = self._instances.get(change.id)
        if known is None or (change.state == "alive" and change.epoch <= known.epoch) or change.epoch < known.epoch:
            return []
        return self._drop(change.id, f"{change.id} is gone: {change.reason}")

    def _drop(self, worker: str, reason: str) -> list[Effect]:
        instance = self._instances.pop(worker)
        return _lose(instance, sorted(instance.admitted), reason)

    def _lose_silent(self, instance: InstanceView, now: float) -> list[Effect]:
        """Give up requests that an idle instance does not have: the notice of their end was lost. The gateway submits
        again those that it still waits for."""
        idle_since = instance.idle_since
        if idle_since is None or now - idle_since < self._silent_seconds:
            return []
        # It may have ended before it was heard that it came, and no report showed it: the instance was idle all along.
        admitted = ((id, one) for id, one in sorted(instance.admitted.items()) if one.confirmed)
        silent = [id for id, one in admitted if now - max(one.at, idle_since) >= self._silent_seconds]
        return _lose(instance, silent, f"{instance.worker} does not have it")

    def places(self) -> Iterator[tuple[str, str]]:
        """Pairs of each request that was given to a worker, and that worker."""
        return ((id, worker) for worker, instance in self._instances.items() for id in instance.admitted)

    def broken(self) -> Iterator[str]:
        """Describe each invariant that does not hold: workers with requests live, and their counted blocks are those of
        their requests."""
        for worker, instance in self._instances.items():
            if instance.epoch <= self._dead.get(worker, 0):
                yield f"router: {worker} is dead and has {sorted(instance.admitted)}"
            if instance.miscounted():
                yield f"router: the blocks of {worker} are miscounted"


def _stop(instance: InstanceView, request_id: str, reason: str) -> list[Effect]:
    # The slot is free only once the worker says so. While the worker has not answered the admission, a message that
    # overtook it would stop nothing.
    admission = instance.admitted[request_id]
    admission.stop()
    return [StopWork(instance.worker, request_id, reason)] if admission.confirmed else []


def _lose(instance: InstanceView, request_ids: Iterable[str], reason: str) -> list[Effect]:
    lost = [(id, admission) for id in request_ids if (admission := instance.release(id)) is not None]
    return [effect for id, admission in lost for effect in _tell_lost(id, admission, reason)]


def _tell_lost(request_id: str, admission: AdmittedRequest, reason: str) -> list[Effect]:
    """Tell the gateway that the request is lost. For a request that was stopped there is no one to tell."""
    return [] if admission.stopped else [Lose(admission.gateway, request_id, reason)]
