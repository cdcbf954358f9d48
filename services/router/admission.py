"""Decides whether the router takes a request. Pure; `now` is seconds since the epoch."""

from dataclasses import dataclass

from livescale.services.router.capacity import WorkerCapacity, fitted, most_tokens, never_fits
from livescale.services.router.forecast import DEFAULT_SLOS, Slos
from livescale.services.router.queue import Queue
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.model_spec import Disaggregation
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.requests import Submit
from livescale.shared.runtime.settings import RoutingName


@dataclass(frozen=True)
class RouterLimits:
    """The limits that a router keeps. At most `max_waiting` requests with `max_waiting_tokens` tokens of one model may
    wait; a single request always may.

    `look_ahead` is the number of requests that an instance may have beyond its slots, so that a slot never waits for
    the router. `silent_seconds`: an instance that reports no request at all for this long has none, whatever was
    admitted to it. `disaggregation`: of models that do not say whether they have it; `slos`: when they are in time.
    `routing`: the rule by which instances are chosen.
    """

    max_waiting: int = 4096
    max_waiting_tokens: int = 1 << 22
    look_ahead: int = 1
    silent_seconds: float = 2.0
    disaggregation: Disaggregation = "off"
    slos: Slos = DEFAULT_SLOS
    routing: RoutingName = "least-loaded"


def check_request(
    request: Submit, entry: ModelEntry | None, queue: Queue, capacity: WorkerCapacity, limits: RouterLimits, now: float
) -> None:
    """Raise Refusal where the request cannot be queued.

    Its code is 400 (it never fits), 404 (unknown model), 429 (full queue), 503 (no worker can serve it) or 504 (its
    deadline has passed). A request that resumes was accepted before. It does not count against the queue's limit, and
    it is not given up because its worker was the only one.
    """
    if entry is None:
        raise Refusal(404, f"model {request.model!r} is not registered")
    refusal = out_of_service(entry)
    if refusal is not None:
        raise refusal
    if request.deadline <= now:
        raise Refusal(504, f"request {request.request_id} is past its deadline")
    _check_size(request, capacity.kv_tokens(request.model))
    if request.generated:
        return
    impossible = cannot_be_loaded(entry, capacity, now)
    if impossible is not None:
        raise Refusal(503, impossible)
    tokens = queue.tokens + len(request.prompt)
    if len(queue) >= limits.max_waiting or (queue and tokens > limits.max_waiting_tokens):
        message = f"{len(queue)} requests with {queue.tokens} tokens for {request.model!r} are waiting already"
        raise Refusal(429, message, capacity.retry_after_ms(request.model, queue.tokens, now))


def _check_size(request: Submit, room: int | None) -> None:
    """Raise Refusal 400 where the request needs more than `room` tokens. None is an unknown room, which refuses
    nothing."""
    if room is None:
        return
    request = fitted(request, room)
    if most_tokens(request) > room:
        raise Refusal(400, never_fits(request, room))


def cannot_be_loaded(entry: ModelEntry, capacity: WorkerCapacity, now: float) -> str | None:
    """Say why no worker can load the model; None where one can, or may yet appear."""
    why = capacity.why_impossible(entry, now)
    return None if why is None else f"model {entry.spec.name!r} cannot be loaded: {why}"


def out_of_service(entry: ModelEntry) -> Refusal | None:
    """Return the refusal of a model that is registered but takes no requests; None where it takes them."""
    if entry.state == "failed":
        return Refusal(503, f"model {entry.spec.name!r} could not be read: {entry.error}")
    if entry.state == "removing":
        return Refusal(404, f"model {entry.spec.name!r} was removed")
    return None
