"""When something that failed may be tried again: later with every failure in a row. Pure; `now` is in seconds."""

from dataclasses import dataclass, field


@dataclass
class Backoff:
    """How long each key waits after failures: `first_seconds`, doubled with each one, at most `longest_seconds`."""

    first_seconds: float
    longest_seconds: float
    _failed: dict[str, tuple[float, float]] = field(default_factory=dict)  # when, and how long to wait from then

    def failed(self, key: str, now: float) -> None:
        _, waited = self._failed.get(key, (now, 0.0))
        self._failed[key] = (now, min(2 * waited or self.first_seconds, self.longest_seconds))

    def succeeded(self, key: str) -> None:
        self._failed.pop(key, None)

    def wait_seconds(self, key: str) -> float:
        """Seconds from the last failure until the next try; 0 after a success."""
        return self._failed[key][1] if key in self._failed else 0.0

    def is_due(self, key: str, now: float) -> bool:
        """Whether `key` may be tried at `now`: always, unless it failed a short time ago."""
        return key not in self._failed or now - self._failed[key][0] >= self._failed[key][1]
