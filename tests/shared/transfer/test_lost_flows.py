"""A lost flow is told by whoever noticed it, in the place of its receiver."""

from livescale.shared.messages.transfers import Transfer
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import TRANSFER
from livescale.shared.transfer.lost_flows import LostFlows
from tests.clocks import LoopClock


def test_the_planner_hears_of_the_receivers_flow_by_its_ticket_and_why() -> None:
    async def main() -> None:
        clock = LoopClock(epoch=1_000_000.0)
        broker = LocalBroker(clock)
        sender, planner = broker.connect(), broker.connect()
        events = await planner.subscribe(TRANSFER)
        LostFlows(sender, clock).tell("scale-1", "worker-3", 7, ConnectionError("it was never reached"))
        await sender.close()
        await planner.close()
        told = [(received.holes["plan"], received.message) async for received in events]
        event = Transfer(
            plan_id="scale-1",
            node="worker-3",
            state="broken",
            at=clock.wall(),
            ticket=7,
            error="it was never reached",
        )
        assert told == [("scale-1", event)]

    virtual_time.run(main())
