"""The monitor's memory of its decisions. Pure.

Every decision to scale is recorded; a hold only when it holds for another reason than the one before, or twenty a
second would bury the rest. Holds are kept apart, so that they push out no scale.
"""

from collections import deque

from livescale.services.monitor.policy import Verdict
from livescale.shared.messages.scaling import Decision

KEPT = 1_000


class Journal:
    """The last decisions of all models, oldest first."""

    def __init__(self) -> None:
        self._scales: deque[tuple[int, Decision]] = deque(maxlen=KEPT)
        self._holds: deque[tuple[int, Decision]] = deque(maxlen=KEPT)
        self._count = 0
        self._last: dict[str, tuple[str, str]] = {}

    def is_news(self, verdict: Verdict) -> bool:
        """Whether to record and publish this verdict."""
        return verdict.action != "hold" or self._last.get(verdict.model) != (verdict.action, verdict.rule)

    def add(self, decision: Decision) -> None:
        self._count += 1
        (self._holds if decision.action == "hold" else self._scales).append((self._count, decision))
        self._last[decision.model] = (decision.action, decision.rule)

    def last(self, model: str | None, limit: int) -> list[Decision]:
        """The newest `limit` of one model, or of all; newest last."""
        kept = sorted([*self._scales, *self._holds], key=lambda one: one[0])
        chosen = [one for _, one in kept if model is None or one.model == model]
        return chosen[-limit:] if limit > 0 else []
