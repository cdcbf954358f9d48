"""What was decided about a model, what follows for the workers of others, what of it an advisory monitor does, and the
journal of the last decisions for those who ask why. Pure."""

from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from livescale.services.monitor.arbitration import Donor, Given, Lack, can_be_served, choose_donors
from livescale.services.monitor.needs import Need, Unknown, missing
from livescale.services.monitor.signals import Observed
from livescale.shared.messages.membership import Role
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.scaling import Action, Decision

KEPT = 1_000


class ScalingVerdict(Struct, frozen=True):
    """What to do about one model, by which rule, and the numbers that it was decided from.

    Nobody is asked to carry out what `is_advice`.
    """

    model: str
    action: Action
    current: int
    target: int
    rule: str
    reason: str
    inputs: dict[str, float | None]
    roles: Mapping[Role, int] = field(default_factory=dict)
    is_advice: bool = False


class JudgedModel(Struct, frozen=True):
    """A model as it was observed, what it needs, and what to do."""

    entry: ModelEntry
    observed: Observed
    need: Need | Unknown
    verdict: ScalingVerdict


def without(claimed: int, observed: Observed, ranks: int) -> Observed:
    """What is left for a model, of so many ranks an instance, once others have `claimed` so many spare workers."""
    if not claimed:
        return observed
    spare, loose = divmod(max(0, observed.spare * ranks + observed.loose - claimed), ranks)
    return replace(observed, spare=spare, loose=loose)


def claims(one: JudgedModel) -> int:
    """How many spare workers a model takes now."""
    return min(one.observed.spare, missing(one.observed, one.need)) * one.entry.spec.tensor_parallel_size


def find_lack(one: JudgedModel) -> Lack | None:
    """What a model waits for that is held up by capacity alone; None where it is held up by anything else.

    To serve an older version is no reason to take an instance from others.
    """
    need, current, loose = one.need, one.observed.current, one.observed.loose
    if one.verdict.rule != "capacity" or not isinstance(need, Need) or current >= need.low:
        return None
    spec = one.entry.spec
    ranks = spec.tensor_parallel_size
    return Lack(
        model=spec.name,
        wanted=missing(one.observed, need) * ranks - loose,
        least=(need.low - current) * ranks - loose,
        next_one=ranks - loose,
        loose=loose,
        rank_bytes=one.entry.rank_bytes,
        priority=spec.priority,
        has_none=current == 0,
    )


def find_donor(
    one: JudgedModel, *, idle_seconds: float | None, surplus_seconds: float | None, arena_bytes: int
) -> Donor | None:
    """A model that could give an instance back; None where it has no more than its minimum, or some come and go.

    One that would have more may be outranked all the same.
    """
    spec, observed = one.entry.spec, one.observed
    could = one.verdict.action == "out" or one.verdict.rule in ("idle", "within", "delay", "capacity")
    if not could or observed.current <= spec.min_instances:
        return None
    if observed.outdated or observed.loading or observed.coming or observed.leaving:
        return None
    return Donor(
        model=spec.name,
        instances=observed.current,
        minimum=spec.min_instances,
        low=one.need.low if isinstance(one.need, Need) else 0,
        high=one.need.high if isinstance(one.need, Need) else 0,
        idle_seconds=idle_seconds,
        surplus_seconds=surplus_seconds,
        workers=spec.tensor_parallel_size,
        arena_bytes=arena_bytes,
        priority=spec.priority,
    )


def make_room(
    judged: Sequence[JudgedModel], lacks: Sequence[Lack], donors: Sequence[Donor], freeing: int
) -> list[ScalingVerdict]:
    """The verdict on each model, where donors make up for what others lack beyond the workers that are `freeing`.

    Models are in the order in which they are served. Spare workers that are too few for an instance of one are kept
    for it while the rest can come: those behind it would else take back, one by one, what they give up for it.
    """
    given = choose_donors(lacks, donors, freeing)
    waiting = {lack.model for lack in lacks if lack.loose and can_be_served(lack, donors, freeing)}
    verdicts, keeps = list[ScalingVerdict](), ""
    for one in judged:
        name = one.verdict.model
        if name in given:
            verdicts.append(give(one, given[name]))
        elif keeps and one.verdict.action == "out":
            verdicts.append(wait(one, keeps))
        else:
            verdicts.append(one.verdict)
        keeps = keeps or (name if name in waiting else "")
    return verdicts


def give(one: JudgedModel, given: Given) -> ScalingVerdict:
    """The verdict to give one instance back, for another model."""
    reason = f"{given.to} needs an instance and no spare worker fits; {given.reason}: {one.verdict.reason}"
    return replace(one.verdict, action="in", target=one.observed.current - 1, rule="yield", reason=reason)


def wait(one: JudgedModel, model: str) -> ScalingVerdict:
    """The verdict to take no spare worker, as another model gets an instance of them and of others that come."""
    reason = f"spare workers are kept for {model}: {one.verdict.reason}"
    current = one.observed.current
    return replace(one.verdict, action="hold", target=current, rule="capacity", reason=reason, roles={})


def as_advice(verdict: ScalingVerdict, spec: ModelSpec) -> ScalingVerdict:
    """The verdict as advice, which nobody is asked to carry out.

    A model gets its fewest instances all the same, and one that is taken out of service is cleared.
    """
    if verdict.action == "hold" or verdict.rule == "removed":
        return verdict
    least = spec.min_instances
    if verdict.action == "out" and verdict.current < least:
        target, reason = min(verdict.target, least), f"{verdict.current} of at least {least} instances"
        return replace(verdict, target=target, rule="minimum", reason=reason, roles={})
    return replace(verdict, is_advice=True)


class Journal:
    """The last decisions of all models.

    Every decision to scale is recorded. A hold is recorded only when its reason differs from the one before, or twenty
    a second would bury the rest; holds are kept apart, so that they push out no scale. Advice is recorded like a hold,
    and when it comes to another number.
    """

    def __init__(self) -> None:
        self._scales: deque[tuple[int, Decision]] = deque(maxlen=KEPT)
        self._holds: deque[tuple[int, Decision]] = deque(maxlen=KEPT)
        self._count = 0
        self._last: dict[str, tuple[str, str, int | None]] = {}

    def is_news(self, verdict: ScalingVerdict) -> bool:
        """Whether to record and publish this verdict: every scale that is to be carried out, and whatever differs from
        the last verdict on the model."""
        is_done = verdict.action != "hold" and not verdict.is_advice
        advised = verdict.target if verdict.is_advice else None
        return is_done or self._last.get(verdict.model) != (verdict.action, verdict.rule, advised)

    def add(self, decision: Decision) -> None:
        self._count += 1
        (self._holds if decision.action == "hold" else self._scales).append((self._count, decision))
        self._last[decision.model] = (decision.action, decision.rule, decision.target if decision.advice else None)

    def last(self, model: str | None, limit: int) -> list[Decision]:
        """The newest `limit` of one model, or of all; newest last."""
        kept = sorted([*self._scales, *self._holds], key=lambda one: one[0])
        chosen = [one for _, one in kept if model is None or one.model == model]
        return chosen[-limit:] if limit > 0 else []
