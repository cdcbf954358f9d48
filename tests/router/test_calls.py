"""What the policy orders is asked of a worker, or of the planner; where that fails, the router goes on."""

import pytest

from livescale.services.router.calls import ROLE_SECONDS, assign, hand_over
from livescale.services.router.effects import AssignRole, MoveRequest
from livescale.shared.bus.contract import Ack, Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.messages.disaggregation import HandOver
from livescale.shared.messages.scaling import RoleSet, SetRole
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import HAND_OVER, ROLE
from tests.clocks import LoopClock

CLOCK = LoopClock(epoch=1_000_000.0)
ORDER = AssignRole("worker-1", "decode", "more decode")


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


def test_the_planner_is_told_the_worker_its_role_and_why() -> None:
    async def main() -> None:
        broker, asked = LocalBroker(CLOCK), list[SetRole]()
        planner, router = broker.connect(), broker.connect()

        async def take(message: SetRole, context: Context) -> RoleSet:
            asked.append(message)
            return RoleSet(worker=message.worker, instance="i", role=message.role)

        await planner.serve(ServiceInfo("planner", "planner-0", "plans"), [Endpoint(ROLE, take)])
        await assign(router, ORDER)
        assert asked == [SetRole(worker="worker-1", role="decode", reason="more decode")]

    virtual_time.run(main())


@pytest.mark.parametrize("refuses", [True, False])
def test_an_order_that_is_refused_or_not_answered_is_given_up(refuses: bool) -> None:
    async def main() -> None:
        broker = LocalBroker(CLOCK, lose=lambda subject: subject == ROLE.pattern and not refuses)
        planner, router = broker.connect(), broker.connect()

        async def refuse(message: SetRole, context: Context) -> RoleSet:
            raise Refusal(409, "it leads no instance")

        await planner.serve(ServiceInfo("planner", "planner-0", "plans"), [Endpoint(ROLE, refuse)])
        await assign(router, ORDER)
        assert CLOCK.now() <= ROLE_SECONDS + 0.1

    virtual_time.run(main())
