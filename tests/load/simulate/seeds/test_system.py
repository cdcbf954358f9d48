from typing import get_args

import pytest

from livescale.load.simulate.seeds.asks import Wishes, has_wishes
from livescale.load.simulate.seeds.random_cluster import LIVE_MODES
from livescale.load.simulate.seeds.system import SeedSystem, kept, random_system
from livescale.services.host.settings import HostSettings
from livescale.shared.model.block_layout import block_layouts
from livescale.shared.runtime.settings import PolicyName


@pytest.fixture(scope="module")
def systems() -> list[SeedSystem]:
    return [random_system(seed) for seed in range(300)]


def test_a_seed_makes_the_same_system_every_time_and_another_one_another(systems: list[SeedSystem]) -> None:
    assert random_system(5) == systems[5]
    assert len({str(system) for system in systems}) == len(systems)


def test_systems_are_small_and_have_workers_for_what_must_serve(systems: list[SeedSystem]) -> None:
    for system in systems:
        workers = len(system.cluster.topology.gpus)
        assert 2 <= workers <= 8
        assert len(system.cluster.topology.hosts) <= 2
        assert sum(spec.min_instances * spec.tensor_parallel_size for spec in system.specs) <= workers
        assert system.asks


def test_all_modes_roles_and_kinds_of_faults_occur(systems: list[SeedSystem]) -> None:
    assert {system.cluster.planner.live for system in systems} == set(LIVE_MODES)
    assert {system.cluster.router.disaggregation for system in systems} == {"off", "on", "auto"}
    assert {len(system.specs) for system in systems} == {1, 2}
    assert {spec.tensor_parallel_size for system in systems for spec in system.specs} == {1, 2, 4}
    assert {fault.what for system in systems for fault in system.faults} == {
        *("kill", "stop", "freeze", "part", "stall", "outage", "lose", "delay", "repeat", "cut-link", "noise"),
        *("slow-disk", "scale", "role", "limit", "update", "form", "remove"),
    }
    assert any(not system.faults for system in systems)
    moments = {fault.when for system in systems for fault in system.faults}
    of_workers = {"loading", "live", "draining", "handing over", "moving KV", "sending"}
    assert moments == {"", "queueing", "reading", "emptying", "taking over", *of_workers}


def test_in_one_system_of_five_requests_use_adapters_and_often_more_than_there_is_room_for(
    systems: list[SeedSystem],
) -> None:
    having = [one for one in systems if one.adapters]
    assert 0.1 < len(having) / len(systems) < 0.3
    for one in having:
        bases = {adapter.name: adapter.base for adapter in one.adapters}
        assert all(bases[ask.adapter] == ask.model for ask in one.asks if ask.adapter is not None)
    assert any(ask.adapter is None for one in having for ask in one.asks)
    changes = {
        fault.what for one in having for fault in one.faults if fault.who in [each.name for each in one.adapters]
    }
    assert changes == {"update", "remove"}


def test_in_one_system_of_ten_a_model_makes_vectors_and_nothing_else_is_asked_of_it(systems: list[SeedSystem]) -> None:
    kinds = set()
    for one in systems:
        configs = {spec.name: one.cluster.models[spec.path] for spec in one.specs}
        pools = {name for name, config in configs.items() if config.pooling != "none"}
        assert all(ask.wishes.pools is (ask.model in pools) for ask in one.asks)
        assert not any(adapter.base in pools for adapter in one.adapters)
        kinds |= {(one.seed, configs[name].encodes) for name in pools}
    assert 0.05 < len(kinds) / len(systems) < 0.2
    assert {encodes for _, encodes in kinds} == {True, False}


def test_some_hosts_have_room_for_one_model_only(systems: list[SeedSystem]) -> None:
    usual = HostSettings().cache_bytes
    small = [one for one in systems if one.cluster.host.cache_bytes != usual]
    assert 0.05 < len(small) / len(systems) < 0.25
    for one in small:
        assert len(one.cluster.topology.hosts) == 2
        sizes = [sum(block.size_bytes for block in block_layouts(c, "bfloat16")) for c in one.cluster.models.values()]
        assert max(sizes) < one.cluster.host.cache_bytes < 2 * max(sizes)


def test_in_some_systems_models_get_other_forms_and_find_workers_for_all_of_their_ranks(
    systems: list[SeedSystem],
) -> None:
    changing = [(one, fault) for one in systems for fault in one.faults if fault.what == "form"]
    assert 0.05 < len({one.seed for one, _ in changing}) / len(systems) < 0.25
    assert {fault.other for _, fault in changing} == {
        *("dtype=float32", "dtype=bfloat16", "layout=panels", "layout=plain", "kv_cache_dtype=fp8"),
        *("kv_cache_dtype=auto", "tensor_parallel_size=1", "tensor_parallel_size=2", "tensor_parallel_size=4"),
    }
    for system in {one.seed: one for one, _ in changing}.values():
        most = {spec.name: spec.tensor_parallel_size for spec in system.specs}
        for fault in system.faults:
            if fault.other.startswith("tensor_parallel_size="):
                most[fault.who] = max(most[fault.who], int(fault.other[-1]))
        assert sum(most.values()) <= len(system.cluster.topology.gpus)


def test_in_one_system_of_ten_clients_ask_several_gateways_of_which_one_may_end(systems: list[SeedSystem]) -> None:
    several = [one for one in systems if one.cluster.gateways > 1]
    assert 0.05 < len(several) / len(systems) < 0.2
    assert {one.cluster.gateways for one in several} == {2, 3}
    ends = {(fault.what, fault.who) for one in several for fault in one.faults}
    assert ends >= {("kill", "gateway-1"), ("stop", "gateway-1")}


def test_a_part_of_a_system_is_the_same_system_with_fewer_requests_and_faults(systems: list[SeedSystem]) -> None:
    system = next(one for one in systems if len(one.faults) > 2 and len(one.asks) > 2)
    part = kept(system, [1], [0, 2])
    assert (part.asks, part.faults) == ([system.asks[1]], [system.faults[0], system.faults[2]])
    assert (part.cluster, part.specs) == (system.cluster, system.specs)


def test_in_one_system_of_five_clients_and_operators_want_what_few_want(systems: list[SeedSystem]) -> None:
    plain, unusual = ([one for one in systems if has_wishes(one.seed) is has] for has in (False, True))
    assert 0.1 < len(unusual) / len(systems) < 0.3
    assert all(ask.wishes in (Wishes(), Wishes(pools=True)) for one in plain for ask in one.asks)
    assert {one.cluster.planner.plan_policy for one in plain} == {"auto"}
    assert {one.cluster.planner.plan_policy for one in unusual} == set(get_args(get_args(PolicyName)[0]))
    wished = [ask.wishes for one in unusual for ask in one.asks]
    for field in Wishes.__struct_fields__:
        assert any(getattr(one, field) != getattr(Wishes(), field) for one in wished), field
