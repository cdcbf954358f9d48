"""What a scenario is made of: sizes in proportion, links as slow as the model is small, and a digest of all of it."""

import pytest
from msgspec.structs import replace

from livescale.load.bench.systems.scenario import BYTES, KV_TOKEN_BYTES, NO_LIMIT, slowed, with_workers
from livescale.shared.topology.file import find_topology
from tests.load.bench.systems.examples import scenario


def test_kv_weighs_against_parameters_as_that_of_an_8b_model() -> None:
    assert pytest.approx(122_000, rel=0.02) == BYTES / KV_TOKEN_BYTES


def test_a_load_takes_as_long_as_that_of_the_real_model() -> None:
    one = scenario("+zigzag")
    real, slow = one.topology.hosts[0], one.cluster().topology.hosts[0]
    assert BYTES / slow.disk == pytest.approx(16.06e9 / real.disk)
    assert BYTES / slow.gpus[0].nic_in == pytest.approx(16.06e9 / real.gpus[0].nic_in)


def test_links_of_a_system_that_loads_in_no_time_carry_everything_at_once() -> None:
    [first, *_] = scenario("ideal").cluster().topology.hosts
    assert {first.disk, first.nic_in, first.gpus[0].host_link} == {NO_LIMIT}


def test_what_a_topology_leaves_out_stays_left_out() -> None:
    assert slowed(find_topology("cluster-a"), 10.0).leaves[0].uplink_in == 0


def test_a_system_is_given_its_settings_and_the_batches_of_all() -> None:
    told = scenario("vllm-half").cluster()
    assert (told.router.routing, told.planner.live, told.worker.max_num_seqs) == ("round-robin", "off", 256)
    assert (scenario("vllm-half").spec().min_instances, scenario("vllm-half").spec().max_instances) == (2, 2)
    assert (scenario("distserve-full").spec().min_instances, told.worker.block_size) == (4, 64)


def test_workers_are_spread_over_the_hosts() -> None:
    topology = with_workers(find_topology("cluster-b"), 5)
    assert [len(host.gpus) for host in topology.hosts] == [3, 2]
    with pytest.raises(ValueError, match="workers is 17, and cluster-b has 16 GPUs"):
        with_workers(find_topology("cluster-b"), 17)


def test_all_that_a_run_depends_on_is_in_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    one = scenario("+zigzag")
    others = [replace(one, seed=1), replace(one, arrivals=one.arrivals[1:]), scenario("+zigzag", live_every_hop=True)]
    assert one.digest() == scenario("+zigzag").digest()
    assert len({each.digest() for each in (one, *others)}) == 4
    before = one.digest()
    monkeypatch.setattr("livescale.load.bench.systems.scenario.code_digest", lambda: "other code")
    assert one.digest() != before
