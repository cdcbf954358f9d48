"""When to scale, and to how many instances (BlitzScale 5.3). Pure; `now` is seconds of one monotonic clock.

The need is a range: with fewer than `low` instances some bound is exceeded, with more than `high` capacity lies idle.
Below the range the model goes to its midpoint at once. Above it the model gives back one instance a round, once fewer
would have been enough for its downscale delay; the last instance has a longer delay. Where another model needs an
instance and no worker is spare, `arbitration` says which model gives one back at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from livescale.services.monitor.needs import Need, Unknown, wanted, wanted_spares
from livescale.services.monitor.role_policy import Act, RecentMost, RoleNeeds, RoleScaling
from livescale.services.monitor.signals import Observed, Signals
from livescale.services.monitor.verdict import (
    JudgedModel,
    ScalingVerdict,
    claims,
    find_donor,
    find_lack,
    make_room,
    without,
)
from livescale.services.monitor.weighing import RoleRule, Weighing
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.scaling import Decision
from livescale.shared.policy.backoff import Backoff
from livescale.shared.policy.invariants import check


@dataclass(frozen=True)
class RetryTimes:
    """How long an answer of the planner is awaited, and how long nothing is asked after a scale failed.

    The second time grows with every scale that fails in a row, up to `longest_retry_seconds`. Instances that serve
    again, rather than drain, say so within `recall_seconds`.
    """

    asked_seconds: float = 5.0
    retry_seconds: float = 1.0
    longest_retry_seconds: float = 16.0
    recall_seconds: float = 0.1


class AskedScale(Struct, frozen=True):
    """A scale that the planner was asked for, of which no record of the planner has been seen yet."""

    decision_id: str
    target: int
    at: float
    seconds: float  # for which it counts from then on


class ScalingPolicy:
    """Takes signals and returns verdicts. It keeps apart what is planned, asked for and seen, so that it asks once.

    `wanted_spares` has, by model, how many workers it lacks that no spare can be.
    """

    def __init__(self, signals: Signals, times: RetryTimes, rule: RoleRule | None = None) -> None:
        self._signals = signals
        self._times = times
        self._weigh = Weighing(rule or RoleRule())
        self._roles = RoleScaling()
        self._asked: dict[str, AskedScale] = {}
        self._refusals = Backoff(times.retry_seconds, times.retry_seconds)
        self._failures = Backoff(times.retry_seconds, times.longest_retry_seconds)
        self._short_since: dict[str, float] = {}
        self._idle_since: dict[str, float] = {}
        self._surplus_since: dict[str, float] = {}
        self._highs: dict[str, RecentMost] = {}
        self.wanted_spares: dict[str, int] = {}

    def asked(self, decision: Decision, now: float) -> None:
        """Note that the planner was asked to carry out this decision."""
        self._asked[decision.model] = AskedScale(decision.id, decision.target, now, self._times.asked_seconds)
        if decision.rule == "yield":
            self._idle_since.pop(decision.model, None)
            self._surplus_since.pop(decision.model, None)
        elif decision.rule == "idle" and decision.current == 2:
            self._idle_since[decision.model] = now  # the last one has a delay of its own

    def planned(self, decision: Decision) -> None:
        """Note that a record of the planner shows its scale for a decision; from here on the scale counts."""
        asked = self._asked.get(decision.model)
        if asked is not None and asked.decision_id == decision.id:
            del self._asked[decision.model]

    def recalled(self, model: str, now: float) -> None:
        """Note that the planner has instances serve again that drained, so no scale comes of it. They say so in a
        moment; until then they are not asked for twice."""
        asked = self._asked.get(model)
        if asked is not None:
            self._asked[model] = replace(asked, at=now, seconds=self._times.recall_seconds)

    def refused(self, model: str, now: float) -> None:
        """Note that the planner refused, or did not answer; it is asked again after a while."""
        self._asked.pop(model, None)
        self._refusals.failed(model, now)

    def failed(self, model: str, now: float) -> None:
        """Note that a scale failed. The next one may fail for the same reason, so it waits longer."""
        self._asked.pop(model, None)
        self._failures.failed(model, now)

    def succeeded(self, model: str) -> None:
        """Note that a scale was carried through: the wait after failures begins anew."""
        self._failures.succeeded(model)

    def check_invariants(self) -> None:
        """What was asked for and what is planned are counted once. Raises InvariantBroken."""
        planned = {decision.id for decision in self._signals.under_way()}
        both = [asked.decision_id for asked in self._asked.values() if asked.decision_id in planned]
        check(f"scaling: {id} is planned and still counts as asked" for id in both)

    def decide(self, now: float) -> list[ScalingVerdict]:
        """A verdict on every model that can be loaded.

        Those of the highest priority come first, and of the same one those without an instance: what they lack is not
        spare for the others, who would take back at once what was given up for them.
        """
        entries = [entry for entry in self._signals.models() if entry.state in ("ready", "removing")]
        names = {entry.spec.name for entry in entries}
        self.wanted_spares = {name: lacks for name, lacks in self.wanted_spares.items() if name in names}
        seen = [(entry, self._signals.observe(entry, now)) for entry in entries]
        seen.sort(key=lambda one: (-one[0].spec.priority, one[1].current > 0, one[0].spec.name))
        judged, claimed = list[JudgedModel](), 0
        for entry, observed in seen:
            judged.append(self._judge(entry, without(claimed, observed, entry.spec.tensor_parallel_size), now))
            claimed += claims(judged[-1])
        return self._make_room(judged, now)

    def _judge(self, entry: ModelEntry, observed: Observed, now: float) -> JudgedModel:
        need, needs, inputs = self._weigh(observed, entry.spec)
        if entry.state == "removing":
            action, target, rule, reason, roles = self._clear(entry.spec, observed, now)
        else:
            action, target, rule, reason, roles = self._act(entry.spec, observed, need, needs, now)
        lacks = wanted_spares(observed, need, entry.spec.tensor_parallel_size)
        if lacks is not None:  # what is not known now is as it was last known
            self.wanted_spares[entry.spec.name] = lacks
        verdict = ScalingVerdict(entry.spec.name, action, observed.current, target, rule, reason, inputs, roles)
        return JudgedModel(entry, observed, need, verdict)

    def _make_room(self, judged: Sequence[JudgedModel], now: float) -> list[ScalingVerdict]:
        """The verdicts, some of which give an instance back where another model lacks one."""
        lacks = [lack for one in judged if (lack := find_lack(one)) is not None]
        if not lacks:
            return [one.verdict for one in judged]
        names = [one.entry.spec.name for one in judged]
        found = [
            find_donor(
                one,
                idle_seconds=_seconds_since(self._idle_since.get(name), now),
                surplus_seconds=_seconds_since(self._surplus_since.get(name), now),
                arena_bytes=self._signals.least_arena(name),
            )
            for one, name in zip(judged, names, strict=True)
        ]
        donors = [donor for donor in found if donor is not None]
        return make_room(judged, lacks, donors, sum(self._freeing(one, now) for one in judged))

    def _freeing(self, one: JudgedModel, now: float) -> int:
        """Workers that a model is giving back, planned or only asked for."""
        asked = self._asked.get(one.entry.spec.name)
        fewer = 0
        if asked is not None and now - asked.at < asked.seconds:
            fewer = max(0, one.observed.current - asked.target)
        return (one.observed.draining + fewer) * one.entry.spec.tensor_parallel_size

    def _act(
        self, spec: ModelSpec, observed: Observed, need: Need | Unknown, needs: RoleNeeds | None, now: float
    ) -> Act:
        current = observed.current
        short = _lasting(self._short_since, spec.name, isinstance(need, Need) and current < need.low, now)
        idle = _lasting(self._idle_since, spec.name, isinstance(need, Need) and current > need.high, now)
        _lasting(self._surplus_since, spec.name, isinstance(need, Need) and current > need.low, now)
        highs, delay = self._highs.setdefault(spec.name, RecentMost()), spec.downscale_delay_s
        high = highs.add(need.high if isinstance(need, Need) else current, now, delay)
        waiting = self._waiting(spec.name, now)
        if waiting is not None:
            return Act("hold", current, *waiting)
        if isinstance(need, Unknown):
            return Act("hold", current, "unknown", need.reason)
        if needs is not None and observed.current and not observed.outdated:
            act = self._roles.act(spec, observed, needs, now)
            if act is not None:
                return act
        if short is not None:
            return _out(spec, observed, need, short)
        if observed.outdated:
            return _renew(spec, observed, need)
        if idle is None:
            return Act("hold", current, "within", f"{need.low} to {need.high} are right: {need.reason}")
        return self._in(spec, observed, need, high, idle, now)

    def _clear(self, spec: ModelSpec, observed: Observed, now: float) -> Act:
        """What to do about a model that is being removed."""
        waiting = self._waiting(spec.name, now)
        if waiting is not None:
            return Act("hold", observed.current, *waiting)
        if observed.current == 0:
            return Act("hold", 0, "removed", "it has no instances left")
        return Act("in", 0, "removed", "it was taken out of service")

    def _waiting(self, model: str, now: float) -> tuple[str, str] | None:
        asked = self._asked.get(model)
        if asked is not None and now - asked.at < asked.seconds:
            return "asked", f"the planner was asked for {asked.target}"
        if not self._failures.is_due(model, now):
            return "retry", f"the last scale failed; trying again after {self._failures.wait_seconds(model):g} s"
        if not self._refusals.is_due(model, now):
            return "retry", f"the planner refused; asking again after {self._times.retry_seconds:g} s"
        return None

    def _in(self, spec: ModelSpec, observed: Observed, need: Need, high: int, idle: float, now: float) -> Act:
        """What to do about a model that has had more than it needs for the seconds `idle`; `high` is the most that was
        needed within its delay."""
        current = observed.current
        delay = spec.downscale_delay_s if current > 1 else spec.downscale_to_zero_delay_s
        if idle < delay or current <= high:
            return Act("hold", current, "idle", f"{need.high} would do; giving back one after {delay:g} s")
        if observed.loading or observed.coming:
            return Act("hold", current, "loading", f"{need.high} would do; an instance that loads is busy")
        return Act("in", current - 1, "idle", f"{high} were enough for {delay:g} s: {need.reason}")


def _out(spec: ModelSpec, observed: Observed, need: Need, short: float) -> Act:
    current, most = observed.current, wanted(need)
    if short < spec.upscale_delay_s and need.rule in ("prefill", "decode"):
        return Act("hold", current, "delay", f"{most} wanted; adding after {spec.upscale_delay_s:g} s: {need.reason}")
    target = min(most, current + observed.to_be_had)
    if target == current:
        return Act("hold", current, "capacity", f"{most} wanted, no spare worker fits: {need.reason}")
    limit = f"; only {observed.to_be_had} of {most - current} wanted are spare or drain" if target < most else ""
    return Act("out", target, need.rule, need.reason + limit)


def _renew(spec: ModelSpec, observed: Observed, need: Need) -> Act:
    """Replace instances of an older version one by one, each after its successor serves wherever workers allow it."""
    current, why = observed.current, f"{observed.outdated} instances have an older version"
    if observed.loading or observed.coming or observed.leaving:
        return Act("hold", current, "version", f"{why}; one is being replaced")
    if current > max(spec.min_instances, need.low):
        return Act("in", current - 1, "version", f"{why}, and {current - 1} instances are enough")
    if observed.spare:
        return Act("out", current + 1, "version", why)
    if current > max(spec.min_instances, 1):
        return Act("in", current - 1, "version", f"{why}, and no spare worker fits one more")
    return Act("hold", current, "capacity", f"{why}, and no spare worker fits one more; add a worker")


def _seconds_since(start: float | None, now: float) -> float | None:
    return None if start is None else now - start


def _lasting(since: dict[str, float], model: str, holds: bool, now: float) -> float | None:
    """For how long a condition has held without a break; None while it does not."""
    if not holds:
        since.pop(model, None)
        return None
    return now - since.setdefault(model, now)
