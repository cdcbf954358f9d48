"""A worker is told what to hand over to whom."""

import pytest

from livescale.services.router.effects import MoveRequest
from livescale.services.router.move_orders import hand_over
from livescale.shared.bus.contract import Ack, Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.messages.disaggregation import HandOver
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import HAND_OVER
from tests.clocks import LoopClock

CLOCK = LoopClock(epoch=1_000_000.0)


@pytest.mark.parametrize("code", [None, 409, 429])
def test_a_worker_is_told_what_to_hand_over_and_says_whether_it_did(code: int | None) -> None:
    async def main() -> None:
        broker, asked = LocalBroker(CLOCK), list[HandOver]()
        worker, router = broker.connect(), broker.connect()

        async def take(message: HandOver, context: Context) -> Ack:
            asked.append(message)
            if code is not None:
                raise Refusal(code, "it stays")
            return Ack()

        info = ServiceInfo("worker", "worker-1", "serves")
        await worker.serve(info, [Endpoint(HAND_OVER, take, {"id": "worker-1"})])
        order = MoveRequest("worker-1", 1, "r", "worker-2", "it drains")
        assert await hand_over(router, order) == code
        assert asked == [HandOver(request_id="r", decode="worker-2")]
        assert await hand_over(router, MoveRequest("gone", 1, "r", "worker-2", "it drains")) == 503

    virtual_time.run(main())
