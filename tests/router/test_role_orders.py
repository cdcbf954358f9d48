"""The router has the planner give roles; where that fails, it goes on."""

import pytest

from livescale.services.router.effects import AssignRole
from livescale.services.router.role_orders import CALL_SECONDS, assign
from livescale.shared.bus.contract import Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.messages.disaggregation import RoleSet, SetRole
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import ROLE
from tests.clocks import LoopClock

CLOCK = LoopClock(epoch=1_000_000.0)
ORDER = AssignRole("worker-1", "decode", "more decode")


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
        assert CLOCK.now() <= CALL_SECONDS + 0.1

    virtual_time.run(main())
