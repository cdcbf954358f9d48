"""How planner and registry learn that a flow was lost, from whichever of its ends noticed it."""

from dataclasses import dataclass

from livescale.shared.bus.contract import Bus
from livescale.shared.messages.transfers import Transfer
from livescale.shared.runtime.clock import Clock
from livescale.shared.subjects import TRANSFER


@dataclass(frozen=True)
class LostFlows:
    """Tells of lost flows on the `bus`.

    A receiver that was never reached hears nothing of its flow until its patience ends, so its sender speaks for it.
    Who is told twice, or of a flow that was replaced, ignores it by the ticket.
    """

    bus: Bus
    clock: Clock

    def tell(self, plan_id: str, receiver: str, ticket: int, failure: Exception) -> None:
        """Say that what comes to `receiver` along the flow `ticket` of a plan ended before its end."""
        event = Transfer(
            plan_id=plan_id, node=receiver, state="broken", at=self.clock.wall(), ticket=ticket, error=str(failure)
        )
        self.bus.publish(TRANSFER, event, plan=plan_id)
