"""Crowds are drawn apart from all else, and their operator asks for what a model may have."""

from itertools import pairwise
from random import Random

import pytest

from livescale.load.simulate.seeds.asks import LOAD_SECONDS, crowd_asks
from livescale.load.simulate.seeds.crowds import CROWD_STORIES, SHARE, Crowd, crowd_faults, has_crowd
from livescale.load.simulate.seeds.random_cluster import LOAD_PATIENCE_SECONDS
from livescale.load.simulate.seeds.random_models import random_models
from livescale.load.simulate.seeds.system import random_system

PROCESSES = [
    "registry-0",
    "planner-0",
    "gateway-0",
    "router-0",
    "router-1",
    "host-0",
    "worker-0",
    "worker-1",
    "worker-2",
]
OWN = ("drained_unheard", "callers_gone", "office_changes", "outages")


def crowd(seed: int) -> Crowd:
    return Crowd(Random(seed), PROCESSES, random_models(Random(seed), 3))


def test_a_share_of_all_seeds_has_a_crowd_and_the_others_are_what_they_were() -> None:
    crowded = [seed for seed in range(1_000) if has_crowd(seed)]
    assert len(crowded) == pytest.approx(1_000 * SHARE, rel=0.2)
    calm = next(seed for seed in range(1_000) if seed not in crowded)
    gaps = sorted(ask.ask.at for ask in random_system(calm).asks)
    assert gaps  # in bursts, as ever
    system = random_system(crowded[0])
    assert max(ask.ask.at for ask in system.asks) < LOAD_SECONDS
    assert system == random_system(crowded[0])


def test_a_crowd_comes_without_a_pause() -> None:
    for seed in range(20):
        times = [ask.ask.at for ask in crowd_asks(Random(seed), ["m", "n"])]
        assert times == sorted(times)
        assert times[-1] > 0.9 * LOAD_SECONDS
        assert max(after - before for before, after in pairwise(times)) < 0.4


@pytest.mark.parametrize("name", OWN)
def test_an_operator_asks_for_as_many_instances_as_a_model_may_have(name: str) -> None:
    [story] = {one for one in CROWD_STORIES if one.__name__ == name}
    for seed in range(30):
        cast = crowd(seed)
        faults = story(cast, 0.5)
        assert faults == story(crowd(seed), 0.5)
        limits = {spec.name: (spec.min_instances, spec.max_instances) for spec in random_models(Random(seed), 3)}
        scales = [fault for fault in faults if fault.what == "scale"]
        assert len(scales) == 2
        assert all(limits[fault.who][0] <= fault.amount <= limits[fault.who][1] for fault in scales)
        assert all(fault.seconds < LOAD_PATIENCE_SECONDS for fault in faults)


def test_every_story_of_a_crowd_is_told() -> None:
    told = {str([fault.what for fault in crowd_faults(crowd(seed))]) for seed in range(200)}
    assert len(told) > len(set(CROWD_STORIES))


def test_a_fault_may_strike_a_moment_later_and_says_so() -> None:
    waits = {fault.wait for seed in range(30) for fault in crowd_faults(crowd(seed))}
    late = next(one for seed in range(30) for one in crowd_faults(crowd(seed)) if one.wait)
    assert len(waits) > 2
    assert f"{late.wait:.2f} s later" in late.describe()
