"""How many instances of a model should prefill, and how many decode (BlitzScale 5.3 and 5.4); when instances get
another role, and which roles are added or given back. Pure.

Prefill needs what waits to be computed, decode what KV is held. Both need links for the KV that is still to be sent;
that is what has decode grow as soon as prefill does. The authors' code divides this last term by the number of decode
instances once more, so that it shrinks as they come; here it does not. While a spare worker keeps the parameters, more
can prefill at once, so that only what waits counts as need for prefill.

A role that lacks instances gets them at once: from the other one what that does not need, else from spare workers. What
a role needs is the most that it needed within the model's downscale delay. So a short pause moves nothing, and nothing
goes to and fro: an instance that was just given is needed for as long.

The delay saves loads. Where workers that are given back keep the parameters, there is none to save, and what counts is
the need of the moment: an instance that has no request, which nothing has to move from, is given back at once.
"""

from collections import deque
from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from livescale.services.monitor.needs import (
    SLOWEST,
    Need,
    Unknown,
    instances_that_keep_up,
    need_at_once,
    need_for_decode,
    need_for_prefill,
    wanted,
)
from livescale.services.monitor.role_signals import RoleLoad
from livescale.services.monitor.signals import Observed
from livescale.shared.messages.membership import Role
from livescale.shared.messages.model_spec import ModelSpec, ScalingBounds
from livescale.shared.messages.scaling import Action

RoleCounts = dict[Role, int]


class RoleNeeds(Struct, frozen=True):
    """The need of each role, and of the model as a whole: one instance is enough where it can do all of it alone."""

    prefill: Need
    decode: Need
    total: Need

    def of(self, role: Role) -> Need:
        return self.prefill if role == "prefill" else self.decode


def weigh_roles(observed: Observed, spec: ModelSpec, *, pre_scale: bool) -> RoleNeeds:
    """The needs of a model whose instances prefill or decode. What is not known for a role asks for what is there.

    With `pre_scale`, prompts that wait, and those whose KV is still to be sent, count as need for decode.
    """
    bounds, there = spec.bounds, observed.roles
    held = observed if pre_scale else replace(observed, waiting_requests=0)
    sending = _need_for_sending(there, bounds)
    computing = need_at_once(observed, bounds) if observed.parked else need_for_prefill(observed, bounds)
    prefill = _largest(there.prefill, computing, sending)
    decode = _largest(there.decode, need_for_decode(held, bounds), *([sending] if pre_scale else []))
    return RoleNeeds(prefill, decode, _total(observed, spec, prefill, decode))


def choose_counts(observed: Observed, needs: RoleNeeds, most: int) -> RoleCounts:
    """How many instances are to have each role, at most so many together.

    A role that lacks instances goes to the middle of its range at once; one that has more than enough gives those.
    Where that is too many, each role is left the same part of what it needs; of two that are even, the one that was to
    grow gives way.
    """
    there = count_roles(observed.roles)
    counts = {role: _aim(number, needs.of(role)) for role, number in there.items()}
    most = max(1, most - observed.roles.others)

    def left(role: Role) -> tuple[bool, float, int, str]:
        """What a role has left of what it needs, if it gives one."""
        return counts[role] > 1, (counts[role] - 1) / max(1, needs.of(role).low), counts[role] - there[role], role

    while sum(counts.values()) > most:
        role = max(counts, key=left)
        if counts[role] <= 1:
            return {"prefill": 1, "decode": 0}
        counts[role] -= 1
    return counts


def count_roles(there: RoleLoad) -> RoleCounts:
    """The instances that only prefill, and those that only decode."""
    return {"prefill": there.prefill, "decode": there.decode}


def lacking(observed: Observed, needs: RoleNeeds) -> list[Role]:
    """The roles with fewer instances than they need. Instances that do everything stand in for either; a model that
    one instance is enough for lacks nothing."""
    there = count_roles(observed.roles)
    missing = {role: needs.of(role).low - number for role, number in there.items() if number < needs.of(role).low}
    alone = needs.total.low <= 1 == observed.current  # without any load it needs none, and is not to get a second one
    return [] if alone or sum(missing.values()) <= observed.roles.others else sorted(missing)


def _aim(number: int, need: Need) -> int:
    return wanted(need) if number < need.low else min(number, need.high)


def _largest(there: int, *needs: Need | Unknown) -> Need:
    known = [need for need in needs if isinstance(need, Need)]
    known += [Need("unknown", there, there, need.reason) for need in needs if isinstance(need, Unknown)]
    most = max(known, key=lambda need: (need.low, need.high))
    return Need(most.rule, max(1, most.low), max(1, *(need.high for need in known)), most.reason)


def _need_for_sending(there: RoleLoad, bounds: ScalingBounds) -> Need:
    if not there.unsent_tokens or there.kv_rate is None or there.kv_rate < SLOWEST:
        return Need("kv", 0, 0, "no KV is to be sent, as far as is known")
    seconds = there.unsent_tokens / there.kv_rate
    reason = f"KV of {there.unsent_tokens} prompt tokens is to be sent, at {there.kv_rate:.0f} tokens/s an instance"
    return Need("kv", ceil(seconds / bounds.kv_hi), ceil(seconds / bounds.kv_lo), reason)


def _total(observed: Observed, spec: ModelSpec, prefill: Need, decode: Need) -> Need:
    bounds = spec.bounds
    most = prefill if prefill.low - observed.roles.prefill >= decode.low - observed.roles.decode else decode
    reason = f"prefill {prefill.low} to {prefill.high}: {prefill.reason}; decode {decode.low} to {decode.high}: "
    low = 1 if _is_enough(observed, bounds.prefill_hi, bounds.decode_hi) else prefill.low + decode.low
    alone = _is_enough(observed, bounds.prefill_lo, bounds.decode_lo) and instances_that_keep_up(observed) <= 1
    high = 1 if alone else prefill.high + decode.high
    if not (observed.waiting_requests or observed.running_requests or observed.kv_blocks_used):
        low = high = 0
    low, high = (min(max(count, spec.min_instances), spec.max_instances) for count in (low, max(low, high)))
    return Need(most.rule, low, high, reason + decode.reason)


def fill_up(counts: RoleCounts, there: RoleCounts) -> RoleCounts:
    """The counts with as many instances as there are: roles that give keep those that no other role takes."""
    filled = dict(counts)
    for _ in range(sum(there.values()) - sum(counts.values())):
        filled[max(filled, key=lambda role: (there[role] - filled[role], role))] += 1
    return filled


def choose_to_give(there: RoleCounts, needs: RoleNeeds) -> RoleCounts:
    """How many instances have each role once one is given back: the role with most beyond its need gives. The last of
    each stays as long as there are two."""
    role = max(
        there, key=lambda one: (there[one] > 1 or sum(there.values()) == 1, there[one] - needs.of(one).high, one)
    )
    return {"prefill": 1, "decode": 0} if sum(there.values()) == 2 else {**there, role: there[role] - 1}


def _is_enough(observed: Observed, prefill: float, decode: float) -> bool:
    """Whether one instance alone can do all of it, up to these bounds of prefill and of decode."""
    waiting, rate = observed.waiting_tokens, observed.prefill_rate
    requests = observed.running_requests + observed.waiting_requests
    if not requests and not waiting and not observed.kv_blocks_used:
        return True
    if not (rate and observed.kv_blocks and observed.max_requests and prefill and decode):
        return observed.current <= 1  # nothing is known of an instance that could be shared
    held = max(observed.kv_blocks_used / observed.kv_blocks, requests / observed.max_requests)
    return waiting / (prefill * rate) + held / decode <= 1


def inputs_of_roles(there: RoleLoad, needs: RoleNeeds) -> dict[str, float | None]:
    """The numbers by role that a decision is made from, as they are published with it; None is unknown."""
    return {
        "prefill_instances": there.prefill,
        "decode_instances": there.decode,
        "unsent_tokens": there.unsent_tokens,
        "kv_tokens_per_second": there.kv_rate,
        "prefill_low": needs.prefill.low,
        "prefill_high": needs.prefill.high,
        "decode_low": needs.decode.low,
        "decode_high": needs.decode.high,
    }


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
            return _park(spec, observed, needs) or self._give_back(spec, observed, recent, now)
        since, role = self._short_since.setdefault(spec.name, now), lacks[0]
        need = needs.of(role)
        reason = f"{need.low} to {need.high} should {role}, {count_roles(observed.roles)[role]} do: {need.reason}"
        if now - since < spec.upscale_delay_s:
            return Act("hold", observed.current, "delay", f"after {spec.upscale_delay_s:g} s: {reason}")
        if observed.parked:
            recent = replace(recent, **{role: needs.of(role) for role in lacks})
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


def _park(spec: ModelSpec, observed: Observed, needs: RoleNeeds) -> Act | None:
    """Give back an instance that has no request, of a role that has more than it needs now; None where there is none,
    or where its worker would not keep the parameters."""
    there, current = count_roles(observed.roles), observed.current
    surplus = [role for role, number in there.items() if role in observed.roles.idle and number > needs.of(role).high]
    if not (observed.parks and surplus) or current <= spec.min_instances:
        return None
    if observed.roles.others or observed.loading or observed.coming:
        return None
    role = surplus[0]
    reason = (
        f"one that would {role} is idle and will be parked; {needs.of(role).high} would do: {needs.of(role).reason}"
    )
    return Act("in", current - 1, "idle", reason, {**there, role: there[role] - 1})


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
