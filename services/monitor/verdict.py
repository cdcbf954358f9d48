"""What was decided about a model, what follows for the workers of others, and what of it an advisory monitor does.
Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from livescale.services.monitor.arbitration import Given, Lack
from livescale.services.monitor.needs import Need, Unknown, missing
from livescale.services.monitor.signals import Observed
from livescale.shared.messages.membership import Role
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.messages.scaling import Action


@dataclass(frozen=True)
class ScalingVerdict:
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


@dataclass(frozen=True)
class JudgedModel:
    """A model as it was observed, what it needs, and what to do."""

    entry: ModelEntry
    observed: Observed
    need: Need | Unknown
    verdict: ScalingVerdict


def find_lack(one: JudgedModel) -> Lack | None:
    """What a model waits for that is held up by capacity alone; None where it is held up by anything else.

    To serve an older version is no reason to take an instance from others.
    """
    need, current = one.need, one.observed.current
    if one.verdict.rule != "capacity" or not isinstance(need, Need) or current >= need.low:
        return None
    spec = one.entry.spec
    ranks = spec.tensor_parallel_size
    return Lack(
        model=spec.name,
        wanted=missing(one.observed, need) * ranks,
        least=(need.low - current) * ranks,
        rank_bytes=one.entry.rank_bytes,
        priority=spec.priority,
        has_none=current == 0,
    )


def give(one: JudgedModel, given: Given) -> ScalingVerdict:
    """The verdict to give one instance back, for another model."""
    reason = f"{given.to} needs an instance and no spare worker fits; {given.reason}: {one.verdict.reason}"
    return replace(one.verdict, action="in", target=one.observed.current - 1, rule="yield", reason=reason)


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
