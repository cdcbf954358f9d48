"""The last decisions of all models, for those who ask why. Pure."""

from collections import deque

from livescale.services.monitor.verdict import ScalingVerdict
from livescale.shared.messages.scaling import Decision

KEPT = 1_000


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
        """Whether to record and publish this verdict."""
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
