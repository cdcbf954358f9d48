"""What serving moves, as workers measure and report it, keeps scales out of its way."""

import asyncio

from msgspec.structs import replace

from livescale.shared.messages.membership import PeerTraffic, Role
from livescale.shared.messages.transfers import Plan
from livescale.shared.simulation import virtual_time
from tests.control.control_plane import ControlPlane, control_plane
from tests.control.fakes import RATE
from tests.control.queries import fake, keep, last_out


async def scaled_out(plane: ControlPlane, instances: int) -> Plan:
    """Scale out to so many instances, which stay."""
    await keep(plane, instances)
    plan = last_out(await plane.records()).plan
    assert plan is not None
    return plan


def senders(plan: Plan) -> set[str]:
    return {flow.sender for flow in plan.flows}


def test_a_worker_that_sends_for_serving_is_no_source_meanwhile() -> None:
    async def main() -> None:
        async with control_plane(workers=4) as plane:
            await keep(plane, 2)
            busy = fake(plane, "worker-0")
            busy.traffic = [PeerTraffic(peer=b"worker-1", sent=0.4 * RATE)]
            await asyncio.sleep(1.0)
            plan = await scaled_out(plane, 3)
            assert "worker-0" not in senders(plan)
            assert "not from worker-0 (40% of its NIC out is taken)" in plan.reasons
            # Its KV comes in to worker-1, whose outgoing link is free.
            assert "worker-1" in senders(plan)
            busy.traffic = []
            await asyncio.sleep(1.0)
            assert "worker-0" in senders(await scaled_out(plane, 4))

    virtual_time.run(main(), limit_seconds=100)


def test_what_only_the_receiving_end_measured_counts_too() -> None:
    async def main() -> None:
        async with control_plane(workers=3) as plane:
            await keep(plane, 2)
            fake(plane, "worker-1").traffic = [PeerTraffic(peer=b"worker-0", received=0.4 * RATE)]
            await asyncio.sleep(1.0)
            assert "worker-0" not in senders(await scaled_out(plane, 3))

    virtual_time.run(main(), limit_seconds=100)


def give_role(plane: ControlPlane, id: str, role: Role) -> None:
    order = fake(plane, id).order
    assert order is not None
    fake(plane, id).order = replace(order, role=role)


def test_a_worker_that_measures_nothing_is_taken_by_its_role() -> None:
    async def main() -> None:
        async with control_plane(workers=3) as plane:
            await keep(plane, 2)
            give_role(plane, "worker-0", "prefill")
            fake(plane, "worker-0").traffic = None
            await asyncio.sleep(1.0)
            plan = await scaled_out(plane, 3)
            assert "worker-0" not in senders(plan)
            assert (
                "the traffic of worker-0 is not known (it measures none): taken by its role, prefill, "
                "as all of its NIC out" in plan.reasons
            )

    virtual_time.run(main(), limit_seconds=100)


def test_an_old_report_says_nothing_of_traffic_now() -> None:
    """A planner that has just started has no reports of its own: those of the registry may be from before an outage."""

    async def main() -> None:
        async with control_plane(workers=3) as plane:
            await keep(plane, 2)
            give_role(plane, "worker-0", "prefill")
            await asyncio.sleep(1.0)
            await plane.kill("planner-0")
            plane.restart("planner")
            await asyncio.sleep(0.01)
            plan = await scaled_out(plane, 3)
            assert "worker-0" not in senders(plan)
            assert any("worker-0 is not known (it is silent)" in reason for reason in plan.reasons)

    virtual_time.run(main(), limit_seconds=100)
