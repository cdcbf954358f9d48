"""The monitor's memory of its decisions. Pure.

Every decision to scale is kept; a hold only when it holds for another reason than the one before, or twenty a second
would bury the rest.
"""

from collections import deque

from services.monitor.policy import Verdict
from shared.messages.scaling import Decision

KEPT = 1_000


class Journal:
    """The last decisions of all models, oldest first."""

    def __init__(self) -> None:
        self._decisions: deque[Decision] = deque(maxlen=KEPT)
        self._last: dict[str, tuple[str, str]] = {}

    def is_news(self, verdict: Verdict) -> bool:
        """Whether to record and publish this verdict."""
        return verdict.action != "hold" or self._last.get(verdict.model) != (verdict.action, verdict.rule)

    def add(self, decision: Decision) -> None:
        self._decisions.append(decision)
        self._last[decision.model] = (decision.action, decision.rule)

    def last(self, model: str | None, limit: int) -> list[Decision]:
        """The newest `limit` of one model, or of all; newest last."""
        chosen = [one for one in self._decisions if model is None or one.model == model]
        return chosen[-limit:] if limit > 0 else []
