"""Which instance serves which request. Pure: time is an argument (seconds since the epoch), effects come back.

A queue per model, in order of arrival, a lower priority as if it had come earlier (lower first, as in vLLM); the head
is admitted to the least loaded instance that has room for it, or where its conversation's last request went, if a slot
is free there; one that goes live comes before those that help it. What has not been admitted stays here, so that
instances that appear later relieve those that are full.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from livescale.services.router.admission import Limits, cannot_be_loaded, check, out_of_service
from livescale.services.router.arrivals import Arrivals
from livescale.services.router.capacity import Capacity
from livescale.services.router.contexts import Contexts
from livescale.services.router.effects import AdmitTo, Effect, Finish
from livescale.services.router.fleet import Fleet
from livescale.services.router.instances import Instance
from livescale.services.router.queue import Queue, Waiting
from livescale.services.router.sizes import fitted, never_fits
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import LeaseChanged, Member, QueueLoad, WorkerReport
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.requests import FinishReason, RequestsEnded, Running, Submit
from livescale.shared.policy.invariants import check as check_state

FINAL = (400, 413, 422)  # codes that say the request itself is wrong: no other worker would take it either


class RouterPolicy:
    """Queues and instances of all models."""

    def __init__(self, limits: Limits, default_retry_ms: int) -> None:
        self._limits = limits
        self._capacity = Capacity(default_retry_ms)
        self._models: dict[str, ModelEntry] = {}
        self._queues: dict[str, Queue] = {}
        self._fleet = Fleet(limits.silent_seconds)
        self._arrivals = Counter[str]()
        self._rates: dict[str, Arrivals] = {}
        self._contexts = Contexts()

    def on_models(self, entries: Iterable[ModelEntry]) -> list[Effect]:
        """The registry's list of models."""
        self._models = {entry.spec.name: entry for entry in entries}
        return [
            _finish(waiting.request, "error", refusal.message, refusal.code)
            for name, entry in self._models.items()
            if name in self._queues and (refusal := out_of_service(entry)) is not None
            for waiting in self._queues[name].remove_if(lambda _: True)
        ]

    def knows(self, model: str) -> bool:
        return model in self._models

    def submit(self, request: Submit, now: float) -> int:
        """Queue the request; returns how many are ahead of it.

        Raises Refusal: 409 for a request that is here already, and what `check` raises.
        """
        queue = self._queues.get(request.model, Queue())
        if self.runs_at(request.request_id) is not None or request.request_id in queue:
            raise Refusal(409, f"request {request.request_id} is already here")
        check(request, self._models.get(request.model), queue, self._capacity, self._limits, now)
        self._queues[request.model] = queue
        self._arrivals[request.model] += 1
        waiting = Waiting(request, self._arrivals[request.model], now)
        self._rates.setdefault(request.model, Arrivals()).add(waiting.tokens, now)
        return queue.add(waiting)

    def runs_at(self, request_id: str) -> str | None:
        """The worker that the request was given to."""
        return self._fleet.runs_at(request_id)

    def cancel(self, request_id: str) -> list[Effect]:
        """The client is gone. Idempotent."""
        for queue in self._queues.values():
            if queue.remove(request_id) is not None:
                return []
        return self._fleet.stop(request_id, "cancelled")

    def admitted(self, worker: str, request_id: str) -> list[Effect]:
        """The worker took the request."""
        return self._fleet.admitted(worker, request_id)

    def refused(self, effect: AdmitTo, code: int, error: str) -> list[Effect]:
        """The worker did not take the request. What it may take later, or another may, goes back to the head."""
        admission = self._fleet.refused(effect)
        if admission is None or admission.waiting is None:
            return []
        if code in FINAL:
            return [_finish(effect.request, "error", error, code)]
        self._queues[effect.request.model].add(admission.waiting.again())
        return []

    def on_report(self, report: WorkerReport, now: float) -> list[Effect]:
        """A worker's heartbeat."""
        if not self._fleet.hears(report):
            return []
        self._capacity.heard(report, now)
        return self._fleet.on_report(report, now)

    def learned(self, worker: str, running: Iterable[Running], now: float) -> None:
        """What a worker runs already. What a gateway submitted again meanwhile need not wait here too."""
        there = self._fleet.learned(worker, running, now)
        for queue in self._queues.values():
            queue.remove_if(lambda waiting: waiting.request.request_id in there)

    def was_away(self, now: float) -> None:
        """Time went by in which this router heard nothing: silence of then says nothing of anybody."""
        self._capacity.listen_again(now)
        self._fleet.was_away()

    def ask_again(self, reason: str) -> list[Effect]:
        """Nothing of a model is placed before its instances have said what they run."""
        return self._fleet.ask_again(reason)

    def on_ended(self, ended: RequestsEnded) -> None:
        """Requests left a worker."""
        self._fleet.on_ended(ended)

    def on_moved(self, moved: RequestsMoved, now: float) -> list[Effect]:
        """Requests are at another worker than they were given to, and the contexts of them will be."""
        effects = self._fleet.on_moved(moved, now)
        for request in self._fleet.requests_at(moved.worker, moved.request_ids):
            self._contexts.went(request, moved.worker)
        return effects

    def on_members(self, members: Iterable[Member], now: float) -> None:
        """Who has been here before this router took office: those that are dead now may be replaced."""
        for member in members:
            if member.service == "worker" and member.lease == "dead":
                self._capacity.lost(member.id, member.epoch, now)

    def on_lease(self, change: LeaseChanged) -> list[Effect]:
        """The registry's judgement of a process."""
        effects = self._fleet.on_lease(change)
        if change.state == "dead" and change.service == "worker":
            self._capacity.lost(change.id, change.epoch, change.at)
        if change.state == "dead" and change.service == "gateway":
            for queue in self._queues.values():
                queue.remove_if(lambda waiting: waiting.request.gateway == change.id)
            effects += self._fleet.stop_of_gateway(change.id, f"gateway {change.id} is gone")
        return effects

    def expire(self, now: float) -> list[Effect]:
        """End what waited past its deadline, or for what nobody will ever load. To be called now and then."""
        self._capacity.watch(now)
        effects: list[Effect] = []
        for model in sorted(model for model, queue in self._queues.items() if queue):
            late = self._queues[model].remove_if(lambda waiting: waiting.request.deadline <= now)
            effects += [_finish(waiting.request, "deadline") for waiting in late]
            effects += self._give_up(model, now)
        return effects

    def _give_up(self, model: str, now: float) -> list[Effect]:
        """As at the door: what was accepted before and resumes waits on, a worker may be on its way back."""
        entry = self._models.get(model)
        why = None if entry is None else cannot_be_loaded(entry, self._capacity, now)
        if why is None:
            return []
        hopeless = self._queues[model].remove_if(lambda waiting: not waiting.request.generated)
        return [_finish(waiting.request, "error", why, 503) for waiting in hopeless]

    def dispatch(self, now: float) -> list[Effect]:
        """Admit what has room. To be called after every event."""
        effects: list[Effect] = []
        for model in sorted(model for model, queue in self._queues.items() if queue):
            queue = self._queues[model]
            while queue:
                effect = self._place(queue.head(), now)
                if effect is None:
                    break
                queue.pop()
                effects.append(effect)
        return effects

    def _place(self, waiting: Waiting, now: float) -> Effect | None:
        instances = [one for one in self._fleet.of_model(waiting.request.model) if one.serves]
        if waiting.request.version is not None:
            instances = [one for one in instances if one.version == waiting.request.version]
            if self._is_gone(waiting.request, instances):
                why = "the version of the model that began this request is gone; send it again"
                return _finish(waiting.request, "error", why, 503)
        if not all(one.learned for one in instances):
            return None  # it may run there already
        candidates = [one for one in instances if self._fleet.is_open(one)]
        largest = max((one.kv_tokens for one in candidates), default=0)
        request = fitted(waiting.request, largest)
        if candidates and all(one.never_fits(request) for one in candidates):
            return _finish(request, "error", never_fits(request, largest), 400)
        with_room = [one for one in candidates if one.has_room(request, self._limits.look_ahead)]
        if not with_room:
            return None
        if len(request.generated) >= request.max_tokens:
            return _finish(request, "length")  # it came from where there was room for more
        suitable = relieve_helpers(with_room)
        best, reason = self._choose(request, suitable)
        self._contexts.went(request, best.worker)
        best.admit(waiting, now)
        return AdmitTo(best.worker, best.epoch, request, waiting.attempt, reason)

    def _choose(self, request: Submit, suitable: Sequence[Instance]) -> tuple[Instance, str]:
        """One that has room, and why. Nobody waits for a context: where no slot is free it is computed elsewhere."""
        last = self._contexts.last(request)
        for one in suitable:
            if one.worker == last and one.has_room(request, 0):
                return one, f"{last} has the request's context"
        best = min(suitable, key=lambda one: (one.share(), one.worker))
        return best, f"{best.worker} is the least loaded of {len(suitable)} with room"

    def _is_gone(self, request: Submit, instances: Iterable[Instance]) -> bool:
        """Whether nobody will ever go on with it: another version has taken the place of its own."""
        entry = self._models.get(request.model)
        replaced = entry is not None and entry.version not in (None, request.version)
        return replaced and all(one.state == "draining" for one in instances)

    def check_invariants(self) -> None:
        """Each request is in one place, and whoever has it lives. Raises InvariantBroken."""
        check_state(self._broken())

    def _broken(self) -> Iterator[str]:
        places: dict[str, str] = {}
        waiting = ((one.request.request_id, f"queue {model}") for model, queue in self._queues.items() for one in queue)
        for id, place in chain(waiting, self._fleet.places()):
            if id in places:
                yield f"router: {id} is at {places[id]} and at {place}"
            places[id] = place
        yield from self._fleet.broken()
        yield from (
            f"router: queue {model} is miscounted" for model, queue in self._queues.items() if queue.miscounted()
        )

    def depths(self) -> dict[str, int]:
        """How many requests of each model wait."""
        return {**dict.fromkeys(self._models, 0), **{model: len(queue) for model, queue in self._queues.items()}}

    def loads(self, now: float) -> list[QueueLoad]:
        """A queue per registered model."""
        return [self._load(model, now) for model in sorted({*self._models, *self._queues})]

    def _load(self, model: str, now: float) -> QueueLoad:
        queue, rate = self._queues.get(model, Queue()), self._rates.get(model, Arrivals())
        return QueueLoad(
            model=model,
            waiting_requests=len(queue),
            waiting_tokens=queue.tokens,
            oldest_seconds=queue.oldest_seconds(now),
            running=sum(len(one.admitted) for one in self._fleet.of_model(model)),
            arriving_tokens_per_second=rate.tokens_per_second(now),
        )


def relieve_helpers(with_room: Sequence[Instance]) -> list[Instance]:
    """While one that still loads has room, those that help it get nothing new: they take from its queue what they can.
    It computes the first layers meanwhile (BlitzScale 5.2)."""
    live = {one.worker for one in with_room if one.state == "live"}
    return [one for one in with_room if not one.helping & live]


def _finish(request: Submit, reason: FinishReason, error: str | None = None, code: int | None = None) -> Finish:
    return Finish(request.gateway, request.request_id, len(request.generated), reason, error, code)
