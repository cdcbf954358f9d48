"""Epochs fence off the dead: none is given twice."""

import asyncio

from livescale.shared.simulation import virtual_time
from tests.control.plane import control_plane


def test_the_epoch_of_a_member_that_died_is_never_given_again() -> None:
    async def main() -> None:
        async with control_plane(workers=2) as plane:
            plane.add_worker(2)
            await asyncio.sleep(0.5)
            epochs = {member.id: member.epoch for member in (await plane.snapshot()).members}
            assert max(epochs, key=lambda id: epochs[id]) == "worker-2"
            await plane.kill("worker-2")
            await asyncio.sleep(4.0)
            await plane.kill("registry-0")
            plane.restart("registry")
            await asyncio.sleep(4.0)
            plane.add_worker(3)
            await asyncio.sleep(0.5)
            members = {member.id: member.epoch for member in (await plane.snapshot()).members}
            assert "worker-2" not in members
            assert members["worker-3"] > epochs["worker-2"]
            assert members["registry-0"] > epochs["worker-2"]

    virtual_time.run(main(), limit_seconds=100)
