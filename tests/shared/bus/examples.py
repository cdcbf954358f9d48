"""Messages that several tests send."""

from livescale.shared.messages.scaling import Decision


def decision(model: str) -> Decision:
    return Decision(
        id="d-1", model=model, at=1.0, action="out", current=1, target=2, rule="bounds", reason="busy", by="monitor"
    )
