"""Who prefills and who decodes the requests of each model, by its setting and by what was measured. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from livescale.services.router.admission import RouterLimits
from livescale.services.router.effects import AssignRole
from livescale.services.router.fleet import ConversationPlaces, ServingFleet
from livescale.services.router.instances import InstanceView
from livescale.services.router.modes import ROUND_SECONDS, ModelMode, speed_of
from livescale.services.router.routing import choose_decode, choose_way, may_prefill
from livescale.shared.messages.model_spec import Disaggregation
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.requests import RequestsEnded, Submit


class Pairing:
    """The pairs of all models. `models` are those that are registered, as the policy knows them."""

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
        """Those with room that may begin a request."""
        return list(with_room) if self.setting(entry) == "off" else may_prefill(with_room, candidates)

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
            way = choose_way(request, prefill, other, speed_of(candidates), self._limits.slos)
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
