"""When instances of a model get another role, and which roles are added or given back. Pure.

A role that lacks instances gets them at once: from the other one what that does not need, else from spare workers.
What a role needs is the most that it needed within the model's downscale delay. So a short pause moves nothing, and
nothing goes to and fro: an instance that was just given is needed for as long.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from livescale.services.monitor.needs import Need
from livescale.services.monitor.role_needs import (
    RoleCounts,
    RoleNeeds,
    choose_counts,
    choose_to_give,
    count_roles,
    fill_up,
    lacking,
)
from livescale.services.monitor.signals import Observed
from livescale.shared.messages.membership import Role
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.scaling import Action


class Act(NamedTuple):
    """What to do about a model, by which rule and why. `roles`: how many instances have which role then."""

    action: Action
    target: int
    rule: str
    reason: str
    roles: Mapping[Role, int] = {}


class RecentMost:
    """The largest of the values that were given within a time."""

    def __init__(self) -> None:
        self._kept = deque[tuple[float, int]]()  # each is larger than those after it

    def add(self, value: int, now: float, seconds: float) -> int:
        """Take a value, and return the largest of so many seconds."""
        while self._kept and self._kept[-1][1] <= value:
            self._kept.pop()
        self._kept.append((now, value))
        while now - self._kept[0][0] > seconds:
            self._kept.popleft()
        return self._kept[0][1]


class RoleScaling:
    """Decides on roles, with a memory of what each role of each model needed of late."""

    def __init__(self) -> None:
        self._lows: dict[tuple[str, str], RecentMost] = {}
        self._highs: dict[tuple[str, str], RecentMost] = {}
        self._short_since: dict[str, float] = {}
        self._seen: dict[str, float] = {}  # since when a model is judged by its roles

    def act(self, spec: ModelSpec, observed: Observed, needs: RoleNeeds, now: float) -> Act | None:
        """What to do about a model that has instances. None where their number alone is to be judged."""
        self._seen.setdefault(spec.name, now)
        recent = self._remember(spec, needs, now)
        lacks = lacking(observed, needs)
        if not lacks:
            self._short_since.pop(spec.name, None)
            return self._give_back(spec, observed, recent, now)
        since, role = self._short_since.setdefault(spec.name, now), lacks[0]
        need = needs.of(role)
        reason = f"{need.low} to {need.high} should {role}, {count_roles(observed.roles)[role]} do: {need.reason}"
        if now - since < spec.upscale_delay_s:
            return Act("hold", observed.current, "delay", f"after {spec.upscale_delay_s:g} s: {reason}")
        return _get(spec, observed, recent, Act("hold", observed.current, role, reason))

    def _remember(self, spec: ModelSpec, needs: RoleNeeds, now: float) -> RoleNeeds:
        """The needs with the largest limits of late."""

        def recent(name: str, need: Need) -> Need:
            key, delay = (spec.name, name), spec.downscale_delay_s
            low = self._lows.setdefault(key, RecentMost()).add(need.low, now, delay)
            high = self._highs.setdefault(key, RecentMost()).add(need.high, now, delay)
            return Need(need.rule, low, high, need.reason)

        return RoleNeeds(recent("prefill", needs.prefill), recent("decode", needs.decode), recent("", needs.total))

    def _give_back(self, spec: ModelSpec, observed: Observed, recent: RoleNeeds, now: float) -> Act | None:
        """Give back one instance of a role that has had more than it needs for the model's delay; one a round."""
        there, current, delay = count_roles(observed.roles), observed.current, spec.downscale_delay_s
        if current < 2 or observed.roles.others:
            return None
        high = sum(min(recent.of(role).high, max(number, recent.of(role).low)) for role, number in there.items())
        high = max(spec.min_instances, min(high, recent.total.high))
        if current <= high:
            held = f"{recent.prefill.low} to {recent.prefill.high} should prefill and {recent.decode.low} to "
            return Act("hold", current, "within", f"{held}{recent.decode.high} decode: {recent.total.reason}")
        if observed.loading or observed.coming:
            return Act("hold", current, "loading", f"{high} would do; an instance that loads is busy")
        if now - self._seen[spec.name] < delay:
            return Act("hold", current, "idle", f"{high} would do; giving back one after {delay:g} s")
        reason = f"{high} were enough for {delay:g} s: {recent.total.reason}"
        return Act("in", current - 1, "idle", reason, choose_to_give(there, recent))


def _get(spec: ModelSpec, observed: Observed, recent: RoleNeeds, why: Act) -> Act:
    """Have a role get instances: other ones change, or spare workers become some."""
    current, there = observed.current, count_roles(observed.roles)
    most = max(current, min(spec.max_instances, current + observed.to_be_had))
    counts: RoleCounts = fill_up(choose_counts(observed, recent, most), there)
    target = sum(counts.values()) + observed.roles.others
    if target > current:
        return why._replace(action="out", target=target, roles=counts)
    if counts == there or current < 2:
        return why._replace(rule="capacity", reason=f"no spare worker fits, and no role has too many: {why.reason}")
    return why._replace(action="switch", roles=counts)
