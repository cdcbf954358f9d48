"""For how long a worker is in use, by model and role: what an instance costs."""

from livescale.shared.messages.membership import Role
from livescale.shared.process.telemetry import Telemetry

Use = tuple[str, Role]  # the model, and the instance's role


class InstanceSeconds:
    """Counts the seconds in which a worker loads, serves or drains. Call `note` whenever it reports itself."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._seconds = telemetry.counter(
            "livescale_worker_instance_seconds_total",
            "Seconds in which the worker was part of an instance, loading and draining included",
            ["model_name", "role"],
        )
        self._use: Use | None = None
        self._counted_until = 0.0

    def note(self, model: str | None, role: Role | None, now: float) -> None:
        """Count the time up to `now` for what the worker was used for; from now on this is its use, if any."""
        if self._use is not None:
            self._seconds.labels(*self._use).inc(now - self._counted_until)
        self._use = None if model is None or role is None else (model, role)
        self._counted_until = now
