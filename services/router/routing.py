"""Which instance a request goes to: by which rule, who of them may prefill it, who decodes what another prefills, and
whether it goes split or local. Pure.

A role is a preference: while no instance that prefills is open, the others do.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from livescale.services.router.admission import RouterLimits
from livescale.services.router.effects import AssignRole
from livescale.services.router.fleet import ServingFleet
from livescale.services.router.forecast import EngineSpeed, Slos
from livescale.services.router.instances import InstanceView
from livescale.services.router.modes import ROUND_SECONDS, ModelMode, speed_of
from livescale.shared.messages.model_spec import Disaggregation
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.requests import RequestsEnded, Submit
from livescale.shared.runtime.settings import RoutingName

MOST_CONVERSATIONS = 1 << 16  # beyond that, those that were quiet for longest are forgotten


class LastPlaces:
    """The worker that whatever has a name was at last. An entry that was forgotten, or is wrong, only costs that
    something is computed again."""

    def __init__(self) -> None:
        self._workers: OrderedDict[tuple[str, str], str] = OrderedDict()  # by model and name

    def note(self, model: str, name: str, worker: str) -> None:
        """Note that the last request of this name went to this worker."""
        self._workers[model, name] = worker
        self._workers.move_to_end((model, name))
        if len(self._workers) > MOST_CONVERSATIONS:
            self._workers.popitem(last=False)

    def find(self, model: str, name: str | None) -> str | None:
        """The worker that it was at; None where that is not known."""
        return None if name is None else self._workers.get((model, name))


class ConversationPlaces:
    """The worker that each conversation's last request went to, by context id; it may still have the conversation's KV
    cache."""

    def __init__(self) -> None:
        self._places = LastPlaces()

    def went(self, request: Submit, worker: str) -> None:
        """Note that a request goes to this worker, or was moved there."""
        if request.context_id is not None:
            self._places.note(request.model, request.context_id, worker)

    def last(self, request: Submit) -> str | None:
        """The worker that the conversation's last request went to; None where that is not known."""
        return self._places.find(request.model, request.context_id)


class RoutingRule:
    """Chooses instances, and remembers where each conversation, and each request, was.

    By `least-loaded` a request waits at the router until an instance has room. Of those that have, it goes to the one
    where the prompts ahead of it take least time: prompts differ by much more than the numbers of requests do. By
    `round-robin` it waits at the instance whose turn it is, so there is a queue for each of them.
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

    def with_room(
        self, request: Submit, open_to: Sequence[InstanceView], look_ahead: int, ahead_seconds: float
    ) -> list[InstanceView]:
        """Those that may have the request now: in turns all that could ever run it, else those that can soon. With
        `ahead_seconds` of prompts or more, an instance gets no other."""
        if self._takes_turns:
            return [one for one in open_to if one.kv_tokens and not one.never_fits(request)]
        rate = best_rate(open_to)
        return [one for one in open_to if one.has_room(request, look_ahead, rate, ahead_seconds)]

    def choose(self, request: Submit, suitable: Sequence[InstanceView]) -> tuple[InstanceView, str]:
        """Choose one of these instances, and say why. No request waits for its context: where the slot is taken,
        another instance computes the context again."""
        if self._takes_turns:
            return self._next(request.model, suitable)
        last = self._contexts.last(request)
        for one in suitable:
            if one.worker == last and one.has_room(request, 0):
                return one, f"{last} has the request's context"
        rate = best_rate(suitable)
        best = min(suitable, key=lambda one: (one.wait_seconds(rate), one.share(), one.worker))
        return best, f"{best.worker} is the least loaded of {len(suitable)} with room"

    def _next(self, model: str, suitable: Sequence[InstanceView]) -> tuple[InstanceView, str]:
        last = self._turns.get(model, "")
        chosen = min(suitable, key=lambda one: (one.worker <= last, one.worker))
        self._turns[model] = chosen.worker
        return chosen, f"it is the turn of {chosen.worker} among {len(suitable)}"


def best_rate(instances: Iterable[InstanceView]) -> float | None:
    """The highest rate of prefill that one of these instances has measured, in tokens a second."""
    loads = [one.load for one in instances if one.load is not None]
    rates = [load.prefill_tokens_per_second for load in loads if load.prefill_tokens_per_second is not None]
    return max(rates, default=None)


def relieve_helpers(with_room: Sequence[InstanceView]) -> list[InstanceView]:
    """While an instance that still loads has room, leave out the instances that help it: they take what they can from
    its queue, and it computes the first layers meanwhile (BlitzScale 5.2)."""
    live = {one.worker for one in with_room if one.state == "live"}
    return [one for one in with_room if not one.helping & live]


class Pairing:
    """Who prefills and who decodes the requests of each model, by its setting and by what was measured."""

    def __init__(self, limits: RouterLimits, fleet: ServingFleet) -> None:
        self._limits = limits
        self._fleet = fleet
        self._decodes = ConversationPlaces()  # where conversations are decoded, where that is another worker
        self._modes: dict[str, ModelMode] = {}
        self._ticked = 0.0

    def setting(self, entry: ModelEntry | None) -> Disaggregation:
        """Whether another worker may decode what one prefills."""
        system = self._limits.disaggregation
        return system if entry is None else entry.spec.disaggregation_in(system)

    def came(self, request: Submit, entry: ModelEntry | None, now: float) -> None:
        """Note a request that is new, where the split is left to the router. One that resumes came before."""
        if not request.generated and self.setting(entry) == "auto":
            self._mode(request.model).recent.came(request, now)

    def ended(self, ended: RequestsEnded) -> None:
        """Note how many tokens the requests had that ended at this worker."""
        instance = self._fleet.find(ended.worker)
        if instance is None or instance.model is None:
            return
        if (mode := self._modes.get(instance.model)) is not None:
            for tokens in ended.tokens:
                mode.recent.ended(tokens)

    def is_decoded_at(self, request: Submit, worker: str) -> bool:
        """Whether the conversation of this request was last decoded there, after another worker began it."""
        return self._decodes.last(request) == worker

    def may_prefill(
        self, entry: ModelEntry | None, with_room: Sequence[InstanceView], candidates: Iterable[InstanceView]
    ) -> list[InstanceView]:
        """Those with room that may begin a request. An instance that only decodes is left out, unless all open
        candidates do that, or it is live: while it loads it can begin prompts, and decode nothing."""
        if self.setting(entry) == "off" or all(_only_decodes(one) for one in candidates):
            return list(with_room)
        return [one for one in with_room if not _only_decodes(one)]

    def choose(
        self, request: Submit, entry: ModelEntry | None, prefill: InstanceView, candidates: Sequence[InstanceView]
    ) -> tuple[str | None, str | None]:
        """Choose the worker that is to decode a request, if it is another one, and say why; nothing is said where there
        is nothing to choose."""
        setting = self.setting(entry)
        if setting == "off":
            return None, None
        decode, why = choose_decode(request, prefill, candidates, self._decodes.last(request))
        if decode is not None and setting == "auto":
            other = next(one for one in candidates if one.worker == decode)
            way = choose_split(request, prefill, other, speed_of(candidates), self._limits.slos)
            decode, why = (decode, f"{why}; {way.reason}") if way.split else (None, f"local: {way.reason}")
        if decode is not None:
            self._decodes.went(request, decode)
        return decode, why

    def tick(self, models: Mapping[str, ModelEntry], now: float) -> list[AssignRole]:
        """Weigh the splits of the models that leave them to the router, and order what follows."""
        if now - self._ticked < ROUND_SECONDS / 2:
            return []
        self._ticked = now
        orders: list[AssignRole] = []
        for name in sorted(models):
            if self.setting(models[name]) == "auto":
                serving = [one for one in self._fleet.of_model(name) if one.state == "serving" and one.learned]
                orders += self._mode(name).tick(serving, self._limits.slos, now)
        return orders

    def _mode(self, model: str) -> ModelMode:
        if model not in self._modes:
            self._modes[model] = ModelMode()
        return self._modes[model]

    def mode(self, entry: ModelEntry | None) -> ModelMode | None:
        """What is known of a model that leaves its split to the router; None of others."""
        return self._modes.get(entry.spec.name) if entry is not None and self.setting(entry) == "auto" else None


def _only_decodes(instance: InstanceView) -> bool:
    return instance.role == "decode" and instance.state != "live"


def choose_decode(
    request: Submit, prefill: InstanceView, candidates: Iterable[InstanceView], last: str | None
) -> tuple[str | None, str]:
    """Choose the worker that decodes what an instance of the role prefill begins, and say why.

    It is None where the instance decodes itself. Instances that decode come first, those that do everything after them.
    `last` had the conversation's last request, and may have most of the KV. Otherwise instances on the same machine
    come first, and of them the one to which others send least, as KV that comes from two at once comes at half the
    rate. Of those the one with the most free blocks is chosen; what is reserved, and what this router has promised to
    others, is not free.
    """
    if prefill.role != "prefill" or prefill.state != "serving":
        return None, f"{prefill.worker} decodes itself"
    others = [one for one in candidates if one.worker != prefill.worker and one.state == "serving"]
    with_room = [one for one in others if one.role != "prefill" and one.has_room_to_decode(request)]
    if not with_room:
        return None, f"{prefill.worker} decodes itself: of {len(others)} others none has room"
    if any(one.worker == last and one.role == "decode" for one in with_room):
        return last, f"{last} decodes: it has the request's context"

    def order(one: InstanceView) -> tuple[bool, bool, int, int, str]:
        coming = one.blocks_coming(prefill)
        return one.role != "decode", one.host != prefill.host, coming, -one.free_blocks, one.worker

    best = min(with_room, key=order)
    where = "here" if best.host == prefill.host else "there"
    if best.blocks_coming(prefill):
        return best.worker, f"{best.worker} decodes: others send least to it of those {where}"
    return best.worker, f"{best.worker} decodes: it has most free blocks of those {where} to which no other sends"


@dataclass(frozen=True)
class SplitChoice:
    """Whether another instance decodes a request, and why."""

    split: bool
    reason: str


def choose_split(
    request: Submit, prefill: InstanceView, decode: InstanceView, speed: EngineSpeed | None, slos: Slos
) -> SplitChoice:
    """Choose whether `decode` goes on with a request that `prefill` begins, or `prefill` itself does.

    It is split where the decode instance keeps the pace, or both are too slow and it is the faster one. What
    decodes at an instance that prefills is slowed down by its prompts, and slows them down.
    """
    if request.max_tokens - len(request.generated) <= 1:
        return SplitChoice(False, "its first token is its last")
    if speed is None:
        return SplitChoice(True, "how long steps take is not measured yet")
    there = speed.pause(decode.requests + 1)
    here = speed.pause(prefill.decoding + 1) + speed.beside_seconds
    told = f"{there * 1e3:.0f} ms a token there, {here * 1e3:.0f} ms here, {slos.tbt * 1e3:.0f} ms are in time"
    return SplitChoice(there <= max(slos.tbt, here), told)
