"""Faults strike when they are to."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from livescale.load.simulate.seeds.history import SeedFault
from livescale.load.simulate.seeds.seed_run import SeedRun
from livescale.load.simulate.seeds.system import kept, random_system
from livescale.load.simulate.seeds.watched import WatchedCluster
from livescale.load.simulate.start import quiet
from livescale.shared.simulation import virtual_time


def struck(faults: Sequence[SeedFault]) -> Sequence[SeedFault]:
    """The faults of a small system as they have happened."""
    system, struck = replace(kept(random_system(0), [], []), faults=list(faults), early=True), list[SeedFault]()

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            cluster = WatchedCluster(system.cluster, tasks)
            run = SeedRun(system, cluster, tasks)
            await run.run()
            struck.extend(run.struck)
            await cluster.close()

    with quiet():
        virtual_time.run(main(), limit_seconds=600.0)
    return struck


def test_a_fault_that_waits_strikes_so_much_later_than_one_of_the_same_moment() -> None:
    # Of no message: the first instance is loaded as if nothing happened.
    at_once = SeedFault(0.0, "delay", "", 0.1, when="loading")
    later = SeedFault(0.0, "repeat", "", 0.1, when="loading", wait=0.3)
    first, second = struck([later, at_once])
    assert (first.what, second.what) == ("delay", "repeat")
    assert second.at - first.at == pytest.approx(0.3, abs=0.01)
