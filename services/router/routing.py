"""By which rule a request goes to one of the instances that may have it. Pure."""

from collections.abc import Sequence

from livescale.services.router.fleet import ConversationPlaces, LastPlaces
from livescale.services.router.instances import InstanceView
from livescale.shared.messages.requests import Submit
from livescale.shared.runtime.settings import RoutingName


class RoutingRule:
    """Chooses instances, and remembers where each conversation, and each request, was.

    By `least-loaded` a request waits at the router until an instance has room. By `round-robin` it waits at the
    instance whose turn it is, so there is a queue for each of them.
    """

    def __init__(self, name: RoutingName) -> None:
        self._takes_turns = name == "round-robin"
        self._contexts = ConversationPlaces()
        self._requests = LastPlaces()
        self._turns: dict[str, str] = {}  # by model, the worker whose turn was last

    def went(self, request: Submit, worker: str) -> None:
        """Note that a request, and so the context of its conversation, is at this worker."""
        self._contexts.went(request, worker)
        self._requests.note(request.model, request.request_id, worker)

    def with_prompt(self, request: Submit, open_to: Sequence[InstanceView]) -> list[InstanceView]:
        """The one that the request follows another to, if there is room; none where instances take turns."""
        first = None if self._takes_turns else self._requests.find(request.model, request.follows)
        return [one for one in open_to if one.worker == first and one.has_room_beside(request)]

    def with_room(self, request: Submit, open_to: Sequence[InstanceView], look_ahead: int) -> list[InstanceView]:
        """Those that may have the request now: in turns all that could ever run it, else those that can soon."""
        if self._takes_turns:
            return [one for one in open_to if one.kv_tokens and not one.never_fits(request)]
        loads = [one.load for one in open_to if one.load is not None]
        rates = [load.prefill_tokens_per_second for load in loads if load.prefill_tokens_per_second is not None]
        rate = max(rates, default=None)
        return [one for one in open_to if one.has_room(request, look_ahead, rate)]

    def choose(self, request: Submit, suitable: Sequence[InstanceView]) -> tuple[InstanceView, str]:
        """Choose one of these instances, and say why. No request waits for its context: where the slot is taken,
        another instance computes the context again."""
        if self._takes_turns:
            return self._next(request.model, suitable)
        last = self._contexts.last(request)
        for one in suitable:
            if one.worker == last and one.has_room(request, 0):
                return one, f"{last} has the request's context"
        best = min(suitable, key=lambda one: (one.share(), one.worker))
        return best, f"{best.worker} is the least loaded of {len(suitable)} with room"

    def _next(self, model: str, suitable: Sequence[InstanceView]) -> tuple[InstanceView, str]:
        last = self._turns.get(model, "")
        chosen = min(suitable, key=lambda one: (one.worker <= last, one.worker))
        self._turns[model] = chosen.worker
        return chosen, f"it is the turn of {chosen.worker} among {len(suitable)}"
