"""Decisions of the monitor, as the log of a run has them."""

from livescale.load.simulate.event_log import LoggedEvent
from livescale.shared.bus.codec import encode
from livescale.shared.messages.scaling import Action, Decision
from livescale.shared.subjects import DECISION


def decided(at: float, action: Action, rule: str, model: str = "m") -> LoggedEvent:
    """The monitor decided by this rule, at `at` seconds of the event loop."""
    decision = Decision(
        id="d", model=model, at=at, action=action, current=2, target=1, rule=rule, reason="r", by="monitor"
    )
    return LoggedEvent(at, f"evt.decision.{model}", encode(decision, json=DECISION.json))
