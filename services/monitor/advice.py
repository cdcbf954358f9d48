"""What an advisory monitor makes of its verdicts: advice, but for what operators have ordered themselves. Pure."""

from dataclasses import replace

from livescale.services.monitor.verdict import ScalingVerdict
from livescale.shared.messages.model_spec import ModelSpec


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
