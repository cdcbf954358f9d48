from livescale.load.simulate.seeds.system import LIVE_MODES, kept, random_system

SYSTEMS = [random_system(seed) for seed in range(300)]


def test_a_seed_makes_the_same_system_every_time_and_another_one_another() -> None:
    assert random_system(5) == SYSTEMS[5]
    assert len({str(system) for system in SYSTEMS}) == len(SYSTEMS)


def test_systems_are_small_and_have_workers_for_what_must_serve() -> None:
    for system in SYSTEMS:
        workers = len(system.cluster.topology.gpus)
        assert 2 <= workers <= 8
        assert len(system.cluster.topology.hosts) <= 2
        assert sum(spec.min_instances * spec.tensor_parallel_size for spec in system.specs) <= workers
        assert system.asks


def test_all_modes_roles_and_kinds_of_faults_occur() -> None:
    assert {system.cluster.planner.live for system in SYSTEMS} == set(LIVE_MODES)
    assert {system.cluster.router.disaggregation for system in SYSTEMS} == {"off", "on", "auto"}
    assert {len(system.specs) for system in SYSTEMS} == {1, 2}
    assert {spec.tensor_parallel_size for system in SYSTEMS for spec in system.specs} == {1, 2}
    assert {fault.what for system in SYSTEMS for fault in system.faults} == {
        *("kill", "stop", "freeze", "part", "stall", "outage", "lose", "delay", "repeat", "cut-link", "noise"),
        *("slow-disk", "scale", "role"),
    }
    assert any(not system.faults for system in SYSTEMS)
    moments = {fault.when for system in SYSTEMS for fault in system.faults}
    assert moments == {"", "loading", "live", "draining", "handing over", "sending"}


def test_a_part_of_a_system_is_the_same_system_with_fewer_requests_and_faults() -> None:
    system = next(one for one in SYSTEMS if len(one.faults) > 2 and len(one.asks) > 2)
    part = kept(system, [1], [0, 2])
    assert (part.asks, part.faults) == ([system.asks[1]], [system.faults[0], system.faults[2]])
    assert (part.cluster, part.specs) == (system.cluster, system.specs)
