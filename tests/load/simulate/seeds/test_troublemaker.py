"""Faults strike when they are to."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from livescale.load.simulate.seeds.history import History, SeedFault
from livescale.load.simulate.seeds.seed_run import SeedRun
from livescale.load.simulate.seeds.system import SeedSystem, kept, random_system
from livescale.load.simulate.seeds.watched import WatchedCluster
from livescale.load.simulate.start import quiet
from livescale.shared.simulation import virtual_time


def struck(faults: Sequence[SeedFault]) -> Sequence[SeedFault]:
    """The faults of a small system as they have happened."""
    return ran(replace(kept(random_system(0), [], []), faults=list(faults), early=True))[0]


def ran(system: SeedSystem) -> tuple[Sequence[SeedFault], History]:
    """The faults of a system as they have happened, and what was seen."""
    struck, seen = list[SeedFault](), list[History]()

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            cluster = WatchedCluster(system.cluster, tasks)
            run = SeedRun(system, cluster, tasks)
            await run.run()
            struck.extend(run.struck)
            seen.append(run.history)
            await cluster.close()

    with quiet():
        virtual_time.run(main(), limit_seconds=600.0)
    return struck, seen[0]


def test_a_fault_that_waits_strikes_so_much_later_than_one_of_the_same_moment() -> None:
    # Of no message: the first instance is loaded as if nothing happened.
    at_once = SeedFault(0.0, "delay", "", 0.1, when="loading")
    later = SeedFault(0.0, "repeat", "", 0.1, when="loading", wait=0.3)
    first, second = struck([later, at_once])
    assert (first.what, second.what) == ("delay", "repeat")
    assert second.at - first.at == pytest.approx(0.3, abs=0.01)


def test_an_updated_model_comes_to_rest_with_its_new_version_at_every_worker() -> None:
    system = kept(random_system(0), [], [])
    [first, *_] = system.specs
    other, models = f"{first.path}.2", system.cluster.models
    update = SeedFault(0.5, "update", first.name, other=other)
    cluster = replace(system.cluster, models={**models, other: models[first.path]})
    struck, history = ran(replace(system, cluster=cluster, faults=[update], early=False))
    assert [fault.what for fault in struck] == ["update"]
    assert len(history.versions[first.name]) == 2
    assert history.rested_at is not None


def test_a_model_that_was_removed_is_registered_again_and_served() -> None:
    system = kept(random_system(0), [], [])
    removal = SeedFault(0.5, "remove", system.specs[0].name, 0.2)
    struck, history = ran(replace(system, faults=[removal], early=False))
    assert [fault.what for fault in struck] == ["remove"]
    assert history.rested_at is not None
    assert history.calm_at > history.ready_at + 0.7


def test_a_model_that_may_have_fewer_instances_gives_back_the_others_one_by_one() -> None:
    system = kept(random_system(1_160_243), [], [])  # with up to four instances
    name = system.specs[0].name
    faults = [SeedFault(0.5, "scale", name, amount=4.0), SeedFault(1.0, "limit", name, amount=1.0)]
    struck, history = ran(replace(system, faults=faults, early=False))
    assert [fault.what for fault in struck] == ["scale", "limit"]
    assert history.rested_at is not None
