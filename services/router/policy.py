"""Which instance serves which request. Pure: time is an argument (seconds since the epoch), and effects are returned.

Each model has a queue in order of arrival. A request of a lower priority counts as if it had come earlier (lower goes
first, as in vLLM).

The head of the queue is admitted to an instance that has room for it: the one whose waiting prompts take least time,
and of equal ones the least loaded. The one that had its conversation's last request comes first, if a slot is free
there. An instance that goes live comes before those that help it.
By another rule instances take turns, and requests wait there.

What has not been admitted stays in the queue, so that instances that appear later relieve those that are full.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from livescale.services.router.admission import (
    RouterLimits,
    WorkerCapacity,
    cannot_be_loaded,
    check_request,
    fitted,
    never_fits,
    out_of_service,
)
from livescale.services.router.effects import AdmitTo, Effect, MoveRequest, finish
from livescale.services.router.fleet import ServingFleet
from livescale.services.router.instances import InstanceView
from livescale.services.router.moves import Moves
from livescale.services.router.requests import ArrivalRate, Queue, Waiting
from livescale.services.router.routing import Pairing, RoutingRule, relieve_helpers
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.live import RequestsMoved
from livescale.shared.messages.membership import LeaseChanged, Member, QueueLoad, WorkerReport
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.requests import RequestsEnded, Running, Submit
from livescale.shared.policy.invariants import check

FINAL = (400, 413, 422)  # the request itself is at fault: no other worker would take it either


class RouterPolicy:
    """The queues and instances of all models: events go in, effects come out."""

    def __init__(self, limits: RouterLimits, default_retry_ms: int) -> None:
        self._limits = limits
        self._capacity = WorkerCapacity(default_retry_ms)
        self._models: dict[str, ModelEntry] = {}
        self._queues: dict[str, Queue] = {}
        self._fleet = ServingFleet(limits.silent_seconds)
        self._arrivals = Counter[str]()
        self._rates: dict[str, ArrivalRate] = {}
        self._rule = RoutingRule(limits.routing)
        self.pairing = Pairing(limits, self._fleet)
        self._moves = Moves(self._fleet)
        self._nothing_waits = False  # since a dispatch found it so

    def on_models(self, entries: Iterable[ModelEntry]) -> list[Effect]:
        """Take over the registry's list of models. Requests that wait for a model that is out of service end."""
        self._nothing_waits = False
        self._models = {entry.spec.name: entry for entry in entries}
        return [
            finish(waiting, "error", refusal.message, refusal.code)
            for name, entry in self._models.items()
            if name in self._queues and (refusal := out_of_service(entry)) is not None
            for waiting in self._queues[name].remove_if(lambda _: True)
        ]

    def knows(self, model: str) -> bool:
        """Whether the model is registered, as far as this router was told."""
        return model in self._models

    def submit(self, request: Submit, now: float) -> int:
        """Queue it; returns how many are ahead. Raises Refusal: 409 for one that is here, and as `check_request`."""
        queue = self._queues.get(request.model, Queue())
        if self.runs_at(request.request_id) is not None or request.request_id in queue:
            raise Refusal(409, f"request {request.request_id} is already here")
        entry = self._models.get(request.model)
        check_request(request, entry, queue, self._capacity, self._limits, now)
        self._nothing_waits = False
        self._queues[request.model] = queue
        self._arrivals[request.model] += 1
        waiting = Waiting(request, self._arrivals[request.model], now)
        self._rates.setdefault(request.model, ArrivalRate()).add(waiting.tokens, now)
        self.pairing.came(request, entry, now)
        return queue.add(waiting)

    def runs_at(self, request_id: str) -> str | None:
        """The worker that the request was given to; None where no worker has it."""
        return self._fleet.runs_at(request_id)

    def cancel(self, request_id: str) -> list[Effect]:
        """Drop a request whose client is gone, wherever it is. Idempotent."""
        for queue in self._queues.values():
            if queue.remove(request_id) is not None:
                return []
        return self._fleet.stop(request_id, "cancelled")

    def admitted(self, worker: str, request_id: str) -> list[Effect]:
        """Note that the worker took the request; one that was stopped meanwhile is stopped there now."""
        return self._fleet.admitted(worker, request_id)

    def refused(self, effect: AdmitTo, code: int, error: str) -> list[Effect]:
        """Note that the worker did not take the request. If this worker or another may take it later, it goes back to
        its place in the queue."""
        admission = self._fleet.refused(effect)
        if admission is None or admission.waiting is None:
            return []
        if code in FINAL:
            return [finish(admission.waiting, "error", error, code)]
        self._nothing_waits = False
        self._queues[effect.request.model].add(admission.waiting.again())
        return []

    def on_report(self, report: WorkerReport, now: float) -> list[Effect]:
        """Take over a worker's heartbeat, unless the worker was declared dead."""
        if not self._fleet.hears(report):
            return []
        self._capacity.heard(report, now)
        self._moves.heard(report)
        return self._fleet.on_report(report, now)

    def learned(self, worker: str, running: Iterable[Running], now: float, ended: Iterable[str] = ()) -> None:
        """Take over what a worker already runs, and what `ended` there lately."""
        self._wait_no_more(self._fleet.learned(worker, running, now, ended))

    def _wait_no_more(self, there: Collection[str]) -> None:
        """Note that workers have these. A gateway may have submitted one of them again; it then leaves the queue."""
        for queue in self._queues.values():
            for request_id in there:
                queue.remove(request_id)

    def was_away(self, now: float) -> None:
        """Note that this router heard nothing for a while: the silence of that time says nothing about any worker."""
        self._capacity.listen_again(now)
        self._fleet.was_away()

    def ask_again(self, reason: str) -> list[Effect]:
        """Ask all instances what they run. Nothing of a model is placed before its instances have answered."""
        return self._fleet.ask_again(reason)

    def on_ended(self, ended: RequestsEnded) -> None:
        """Note that requests left a worker, and free what was counted for them."""
        self.pairing.ended(ended)
        self._fleet.on_ended(ended)

    def on_moved(self, moved: RequestsMoved, now: float) -> list[Effect]:
        """Note that requests, and so the contexts of their conversations, have gone to another worker."""
        effects = self._fleet.on_moved(moved, now)
        self._wait_no_more([id for id in moved.request_ids if self.runs_at(id) is not None])
        for request in self._fleet.requests_at(moved.worker, moved.request_ids):
            if not self.pairing.is_decoded_at(request, moved.worker):
                self._rule.went(request, moved.worker)
        return effects

    def on_members(self, members: Iterable[Member], now: float) -> None:
        """Take over which workers were there before this router took office: the dead may still be replaced."""
        for member in members:
            if member.service == "worker" and member.lease == "dead":
                self._capacity.lost(member.id, member.epoch, now)

    def on_lease(self, change: LeaseChanged) -> list[Effect]:
        """Take over the registry's judgement of a process: alive, suspect or dead."""
        effects = self._fleet.on_lease(change)
        if change.state == "dead" and change.service == "worker":
            self._capacity.lost(change.id, change.epoch, change.at)
        if change.state == "dead" and change.service == "gateway":
            for queue in self._queues.values():
                queue.remove_if(lambda waiting: waiting.request.gateway == change.id)
            effects += self._fleet.stop_of_gateway(change.id, f"gateway {change.id} is gone")
        return effects

    def expire(self, now: float) -> list[Effect]:
        """End requests past their deadline, or for a model that will never load, and see to roles. Called regularly."""
        self._capacity.watch(now)
        effects: list[Effect] = [*self.pairing.tick(self._models, now), *self._fleet.expire(now)]
        for model in sorted(model for model, queue in self._queues.items() if queue):
            late = self._queues[model].remove_if(lambda waiting: waiting.request.deadline <= now)
            effects += [finish(waiting, "deadline") for waiting in late]
            effects += self._give_up(model, now)
        return effects

    def _give_up(self, model: str, now: float) -> list[Effect]:
        """End the model's new requests where no worker can load it. Those that were accepted before and resume wait on,
        as their worker may be on its way back."""
        entry = self._models.get(model)
        why = None if entry is None else cannot_be_loaded(entry, self._capacity, now)
        if why is None:
            return []
        hopeless = self._queues[model].remove_if(lambda waiting: not waiting.request.generated)
        return [finish(waiting, "error", why, 503) for waiting in hopeless]

    @property
    def is_settled(self) -> bool:
        """Whether nothing can be dispatched, and no queue has changed since the last dispatch, as nearly always."""
        return self._nothing_waits and self._moves.is_empty

    def dispatch(self, now: float) -> list[Effect]:
        """Admit what has room. Called after every event."""
        effects: list[Effect] = []
        waiting = [model for model, queue in self._queues.items() if queue]
        self._nothing_waits = not waiting
        if not waiting and self._moves.is_empty:
            return effects
        for model in sorted(waiting):
            queue = self._queues[model]
            while queue:
                effect = self._place(queue.head(), now)
                if effect is None:
                    break
                queue.pop()
                effects.append(effect)
        return effects + self._moves.due(now, lambda model: bool(self._queues.get(model)), self._splits)

    def _splits(self, model: str) -> bool:
        return self.pairing.setting(self._models.get(model)) != "off"

    def moved(self, effect: MoveRequest, code: int | None, now: float) -> None:
        """Note that a worker has handed a request over, or why it stays there: a `code` of HTTP."""
        self._moves.answered(effect, code, now)

    def _place(self, waiting: Waiting, now: float) -> Effect | None:
        """The effect that takes this request out of the queue: an admission or its end. None where it has to wait."""
        instances = [one for one in self._fleet.of_model(waiting.request.model) if one.serves]
        if waiting.request.version is not None:
            instances = [one for one in instances if one.version == waiting.request.version]
            if self._is_gone(waiting.request, instances):
                why = "the version of the model that began this request is gone; send it again"
                return finish(waiting, "error", why, 503)
        if not all(one.learned for one in instances):
            return None  # one of them may already run it
        candidates = [one for one in instances if self._fleet.is_open(one)]
        largest = max((one.kv_tokens for one in candidates), default=0)
        request = fitted(waiting.request, largest)
        if candidates and all(one.never_fits(request) for one in candidates):
            return finish(waiting, "error", never_fits(request, largest), 400)
        entry, may_prefill = self._models.get(request.model), self.pairing.may_prefill
        kept = may_prefill(entry, self._rule.with_prompt(request, candidates), candidates)
        ahead = self._capacity.ahead_seconds(entry)
        with_room = kept or relieve_helpers(self._rule.with_room(request, candidates, self._limits.look_ahead, ahead))
        suitable = may_prefill(entry, with_room, candidates)
        if not suitable:
            return None
        if len(request.generated) >= request.max_tokens:
            return finish(waiting, "length")  # it has as many tokens as fit here; who began it had room for more
        best, reason = self._rule.choose(request, suitable)
        reason = f"{best.worker} has the KV of {request.follows}" if kept else reason
        decode, pair = self.pairing.choose(request, entry, best, candidates)
        reason = reason if pair is None else f"{reason}; {pair}"
        self._rule.went(request, best.worker)
        best.admit(waiting, now, decode, has_prompt=bool(kept))
        scale = best.scale if waiting.since < (best.open_since or 0.0) else None
        return AdmitTo(best.worker, best.epoch, request, waiting.attempt, reason, waiting.since, scale, decode)

    def _is_gone(self, request: Submit, instances: Iterable[InstanceView]) -> bool:
        """Whether the request can never continue, because another version has replaced the one that began it."""
        entry = self._models.get(request.model)
        replaced = entry is not None and entry.version not in (None, request.version)
        return replaced and all(one.state == "draining" for one in instances)

    def check_invariants(self) -> None:
        """Check that each request is in one place, and that every worker with requests lives. Raises
        InvariantBroken."""
        check(self._broken())

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
        """The number of waiting requests, by model; 0 for models without any."""
        return {**dict.fromkeys(self._models, 0), **{model: len(queue) for model, queue in self._queues.items()}}

    def loads(self, now: float) -> list[QueueLoad]:
        """The load of each registered model's queue, by name."""
        return [self._load(model, now) for model in sorted({*self._models, *self._queues})]

    def _load(self, model: str, now: float) -> QueueLoad:
        queue, rate = self._queues.get(model, Queue()), self._rates.get(model, ArrivalRate())
        mode = self.pairing.mode(self._models.get(model))
        return QueueLoad(
            model=model,
            waiting_requests=len(queue),
            waiting_tokens=queue.tokens,
            oldest_seconds=queue.oldest_seconds(now),
            running=sum(len(one.admitted) for one in self._fleet.of_model(model)),
            arriving_tokens_per_second=rate.tokens_per_second(now),
            traceparent=queue.oldest_traceparent(),
            prefilling=None if mode is None else mode.wanted,
            why_prefilling="" if mode is None else mode.reason,
        )
