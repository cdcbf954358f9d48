"""Random systems of the suite: what must hold does, and a seed is the same run every time."""

import pytest
from msgspec.structs import replace

from livescale.load.simulate.seeds.history import SeedFault
from livescale.load.simulate.seeds.run import play, played
from livescale.load.simulate.seeds.system import kept, random_system

SEEDS = 100
IN_SUITE = 40  # the others are slow ones: ten take a core some five seconds
EACH = 10


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= IN_SUITE else [], id=str(first))
        for first in range(0, SEEDS, EACH)
    ],
)
def test_what_must_hold_holds_whatever_goes_wrong(first: int) -> None:
    failed = {seed: [str(one) for one in played(seed).violations] for seed in range(first, first + EACH)}
    assert {seed: found for seed, found in failed.items() if found} == {}


def test_a_copy_of_each_model_is_back_after_the_death_of_all_that_hold_one() -> None:
    system = kept(random_system(0), [], [])
    hosts = system.cluster.topology.hosts
    workers = len(system.cluster.topology.gpus)
    holders = [*(f"host-{host}" for host in range(len(hosts))), *(f"worker-{worker}" for worker in range(workers))]
    deaths = [SeedFault(at=2.0, what="kill", who=holder, seconds=3.0) for holder in holders]
    assert play(replace(system, faults=deaths)).violations == []


def test_a_seed_is_the_same_run_every_time_and_a_part_of_it_another() -> None:
    digests = [played(1).digest, played(1).digest, played(1, faults=[]).digest]
    assert digests[0] == digests[1] != digests[2]


def test_a_deadline_by_a_rounding_ahead_of_the_clock_passes() -> None:
    assert played(980213).violations == []  # the worker looked at the clock for ever, which stood still
