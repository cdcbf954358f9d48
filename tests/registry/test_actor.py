"""The registry as a whole: what it knows after it was started again."""

from livescale.shared.messages.registry import Register
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import REGISTER
from tests.registry.local import add_host, in_virtual_time, join, registry, snapshot
from tests.registry.reports import CHECKED, spec


def test_a_registry_that_is_started_again_knows_models_and_members_and_gives_higher_epochs() -> None:
    async def main() -> None:
        broker = LocalBroker()
        async with registry(broker) as bus:
            await add_host(bus, CHECKED)
            await bus.call(REGISTER, Register(spec=spec()), timeout=1.0)
            epoch = await join(bus)
        async with registry(broker) as bus:
            found = await snapshot(bus)
            assert [entry.spec.name for entry in found.models] == ["m"]
            assert {each.id: each.lease for each in found.members}["planner-0"] == "suspect"
            assert await join(bus) > epoch

    in_virtual_time(main())
