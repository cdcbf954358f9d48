"""What each model needs, by role where these decide. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

from livescale.services.monitor.needs import Need, Unknown, inputs_of, weigh
from livescale.services.monitor.role_policy import RoleNeeds, inputs_of_roles, weigh_roles
from livescale.services.monitor.signals import Observed
from livescale.shared.messages.model_spec import Disaggregation, ModelSpec


@dataclass(frozen=True)
class RoleRule:
    """Whether a model's instances prefill or decode by what the load needs, rather than by a fixed share, and whether
    decode is scaled before prompts are computed. `system` is the setting that counts for models without their own."""

    system: Disaggregation = "off"
    by_need: bool = True
    pre_scale: bool = True

    def holds(self, spec: ModelSpec) -> bool:
        return self.by_need and spec.disaggregation_in(self.system) == "on"


class Weighed(NamedTuple):
    """What a model needs, by role where these decide, and the numbers that it follows from."""

    need: Need | Unknown
    needs: RoleNeeds | None
    inputs: dict[str, float | None]


class Weighing:
    """Weighs what is observed of models. What was weighed last is not weighed again: that is asked hundreds of times a
    second."""

    def __init__(self, rule: RoleRule) -> None:
        self._rule = rule
        self._last: dict[str, tuple[Observed, ModelSpec, Weighed]] = {}  # by model

    def __call__(self, observed: Observed, spec: ModelSpec) -> Weighed:
        last = self._last.get(spec.name)
        if last is not None and last[0] is observed and last[1] is spec:
            return last[2]
        weighed = self._weigh(observed, spec)
        self._last[spec.name] = observed, spec, weighed
        return weighed

    def _weigh(self, observed: Observed, spec: ModelSpec) -> Weighed:
        need = weigh(observed, spec)
        if not self._rule.holds(spec) or isinstance(need, Unknown) or need.rule in ("minimum", "from-zero"):
            return Weighed(need, None, inputs_of(observed, need))
        needs = weigh_roles(observed, spec, pre_scale=self._rule.pre_scale)
        inputs = inputs_of(observed, needs.total) | inputs_of_roles(observed.roles, needs)
        return Weighed(needs.total, needs, inputs)
