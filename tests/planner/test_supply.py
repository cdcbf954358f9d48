from collections.abc import Iterable, Mapping

import pytest
from msgspec.structs import replace

from livescale.services.planner.orders import ticketed
from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.make_plan import predict
from livescale.services.planner.plans.plan import CannotPlan, ServingFlow, TransferPlan
from livescale.services.planner.supply import Supply, explain_unknown, find_places, find_traffic
from livescale.shared.messages.membership import (
    Holding,
    HostReport,
    Member,
    PeerTraffic,
    Role,
    ServiceName,
    WorkerReport,
)
from livescale.shared.messages.registry import Snapshot
from livescale.shared.topology.file import find_topology
from livescale.shared.topology.paths import path_between
from livescale.shared.topology.topology import ASSUMED_NIC, Topology
from tests.control.fakes import BLOCKS, manifest, whole
from tests.planner.plans.clusters import cluster, machine
from tests.planner.samples import VERSION, host, member, serving, snapshot, spare

EVERY = range(BLOCKS)


def planned(
    picture: Snapshot,
    *targets: str,
    sending: Mapping[str, int] | None = None,
    receiving: Iterable[str] = (),
    avoid: Iterable[str] = (),
) -> TransferPlan:
    places = find_places(picture.members, None, link_rate=1e8)
    supply = Supply(picture, manifest(VERSION), places, sending or {}, receiving)
    return plan_chains(supply.multicast(dict.fromkeys(targets, EVERY), avoid))


def senders(plan: TransferPlan) -> list[tuple[str, str]]:
    return [(flow.sender, flow.receiver) for flow in plan.flows]


def test_a_chain_goes_from_the_source_through_every_target() -> None:
    made = planned(snapshot(serving("w-1"), spare("w-2"), spare("w-3")), "w-2", "w-3")
    assert senders(made) == [("w-1", "w-2"), ("w-2", "w-3")]


def test_every_source_has_a_chain() -> None:
    made = planned(snapshot(serving("w-1"), host("host-0"), *map(spare, "abc")), "a", "b", "c")
    assert senders(made) == [("w-1", "a"), ("host-0", "b"), ("a", "c")]


@pytest.mark.parametrize(
    ("holders", "sending", "source"),
    [
        ([serving("w-1"), host("host-0")], {}, "w-1"),
        ([serving("w-1", running=5), serving("w-2", running=2)], {}, "w-2"),
        ([serving("w-1", flows_out=1), serving("w-2", running=9)], {}, "w-2"),
        ([serving("w-1", flows_out=1), host("host-0")], {}, "host-0"),
        ([serving("w-1"), serving("w-2", running=9)], {"w-1": 1}, "w-2"),
        ([serving("w-2"), serving("w-1")], {}, "w-1"),
        ([host("host-1", flows_out=2), host("host-0", flows_out=3)], {}, "host-1"),
    ],
)
def test_the_source_has_the_fewest_flows_then_is_a_worker_then_has_the_least_load(
    holders: list[WorkerReport | HostReport], sending: dict[str, int], source: str
) -> None:
    assert senders(planned(snapshot(*holders, spare("w-9")), "w-9", sending=sending)) == [(source, "w-9")]


@pytest.mark.parametrize(
    "useless",
    [
        serving("w-1", state="draining"),
        serving("w-1", state="loading"),
        serving("w-1", holding=whole("m", "another version")),
        serving("w-1", holding=Holding(model="m", version=VERSION, ready=[0, 1], total=4)),
        serving("w-1", holding=None),
    ],
    ids=["draining", "loading", "another version", "a part", "nothing"],
)
def test_a_node_that_lacks_parameters_or_may_lose_them_is_no_source(useless: WorkerReport) -> None:
    with pytest.raises(CannotPlan, match="no worker or host has the whole model"):
        planned(snapshot(useless, spare("w-9")), "w-9")
    assert senders(planned(snapshot(useless, host("host-0"), spare("w-9")), "w-9")) == [("host-0", "w-9")]


def reading(id: str, ready: int, version: str = VERSION) -> HostReport:
    holding = Holding(model="m", version=version, ready=list(range(ready)), total=BLOCKS)
    return replace(host(id), holdings=[holding])


def test_a_host_that_is_reading_the_version_is_a_source_where_nobody_has_it() -> None:
    picture = snapshot(reading("host-0", 1), spare("w-9"))
    assert senders(planned(picture, "w-9")) == [("host-0", "w-9")]
    places = find_places(picture.members, None, link_rate=1e8)
    assert (
        Supply(picture, manifest(VERSION), places).describe("host-0") == "from host-0: a host that is reading the model"
    )
    assert senders(planned(snapshot(reading("host-0", 1), host("host-1"), spare("w-9")), "w-9")) == [("host-1", "w-9")]


def test_what_comes_from_a_disk_is_predicted_at_the_disk_s_rate() -> None:
    picture = snapshot(reading("host-0", 1), spare("w-9"))
    places = find_places(picture.members, None, link_rate=1e8)
    supply = Supply(picture, manifest(VERSION), {**places, "host-0": replace(places["host-0"], disk=1e6)})
    multicast = supply.multicast({"w-9": EVERY})
    made = plan_chains(multicast)
    assert multicast.disks == {"host-0"}
    assert predict(multicast, made, 1 << 20).whole("w-9") == pytest.approx(4.0)
    flows = ticketed(made, BLOCKS, iter([1]), multicast.disks)
    left, rest = supply.rest(flows, {"w-9": [2, 3]})
    assert predict(left, rest, 1 << 20).whole("w-9") == pytest.approx(2.0)


@pytest.mark.parametrize(("ready", "version"), [(0, VERSION), (1, ""), (1, "another version")])
def test_a_host_that_waits_for_its_turn_or_reads_something_unknown_is_no_source(ready: int, version: str) -> None:
    with pytest.raises(CannotPlan, match="no worker or host has the whole model"):
        planned(snapshot(reading("host-0", ready, version), spare("w-9")), "w-9")


@pytest.mark.parametrize("lease", ["suspect", "dead"])
def test_a_process_that_may_be_dead_neither_gives_nor_takes(lease: str) -> None:
    reports = serving("w-1"), spare("w-9")
    with pytest.raises(CannotPlan, match="no worker or host has the whole model"):
        planned(snapshot(*reports, members=[member("w-1", lease=lease), member("w-9")]), "w-9")
    with pytest.raises(CannotPlan, match="w-9 cannot be reached"):
        planned(snapshot(*reports, members=[member("w-1"), member("w-9", lease=lease)]), "w-9")


def test_a_node_that_is_going_to_have_the_model_passes_it_on_before_a_busy_source_sends_twice() -> None:
    picture = snapshot(serving("w-1", flows_out=1), serving("w-2", state="loading", holding=None), spare("w-9"))
    assert senders(planned(picture, "w-9", receiving=["w-2"])) == [("w-2", "w-9")]


def test_a_sender_of_a_running_plan_has_an_equal_share_of_its_nic_left() -> None:
    made = planned(snapshot(serving("w-1"), serving("w-2"), spare("w-9")), "w-9", sending={"w-1": 1})
    assert made.reasons == ("not from w-1 (50% of its NIC out is taken)",)
    made = planned(snapshot(serving("w-1"), serving("w-2"), spare("w-9")), "w-9", sending={"w-1": 3})
    assert made.reasons == ("not from w-1 (75% of its NIC out is taken)",)


def test_a_sender_that_was_just_lost_sends_again_only_where_no_other_can() -> None:
    both = snapshot(serving("w-1"), serving("w-2"), spare("w-9"))
    assert senders(planned(both, "w-9", avoid=["w-1"])) == [("w-2", "w-9")]
    assert senders(planned(snapshot(serving("w-1"), spare("w-9")), "w-9", avoid=["w-1"])) == [("w-1", "w-9")]


CLUSTER = find_topology("cluster-b")


def placed_member(id: str, host: str = "box", place: str | None = None, service: ServiceName = "worker") -> Member:
    return Member(service=service, id=id, pid=1, host=host, epoch=1, lease="alive", place=place)


def test_members_are_where_they_say_in_the_topology() -> None:
    members = [
        placed_member("worker-0", place="b0/0"),
        placed_member("worker-1", place="b1/7"),
        placed_member("host-0", "b0", "b0", "host"),
    ]
    places = find_places(members, CLUSTER)
    assert {id: place.id for id, place in places.items()} == {"worker-0": "b0/0", "worker-1": "b1/7", "host-0": "b0"}
    assert path_between(places["worker-0"], places["worker-1"]).rate == 12.5e9


def test_a_process_that_the_topology_lacks_is_left_out() -> None:
    members = [
        placed_member("worker-0"),
        placed_member("worker-1", place="z/0"),
        placed_member("router-0", service="router"),
    ]
    assert find_places(members, CLUSTER) == {}
    assert find_places([placed_member("router-0", service="router")], None) == {}


def test_without_a_topology_each_machine_is_a_host_and_its_workers_are_one_domain() -> None:
    members = [
        placed_member("worker-0"),
        placed_member("worker-1"),
        placed_member("host-0", service="host"),
        placed_member("worker-2", "other"),
    ]
    places = find_places(members, None)
    assert path_between(places["worker-0"], places["worker-1"]).over == "domain"
    assert path_between(places["host-0"], places["worker-1"]).over == "host_link"
    assert path_between(places["worker-0"], places["worker-2"]).over == "network"
    assert path_between(places["host-0"], places["worker-2"]).over == "network"


def test_with_a_link_rate_each_process_has_one_link_for_all_that_leaves_it_whatever_machine_it_is_on() -> None:
    members = [placed_member("worker-0"), placed_member("worker-1"), placed_member("host-0", service="host")]
    places = find_places(members, None, link_rate=1e8)
    path = path_between(places["host-0"], places["worker-1"])
    assert (path.over, path.rate) == ("network", 1e8)
    assert path_between(places["worker-0"], places["worker-1"]).over == "network"
    assert {place.machine for place in places.values()} == {"box"}


TOPOLOGY = cluster(machine("a", 2), machine("b", leaf="l1"), machine("c", 2, joined=False), uplink=3.0)
PLACES = {"w-1": "a/0", "w-2": "a/1", "w-3": "b/0", "w-4": "c/0", "w-5": "c/1"}


def moving(id: str, peer: str, sent: float = 0.0, received: float = 0.0) -> WorkerReport:
    traffic = [PeerTraffic(peer=peer.encode(), sent=sent, received=received)]
    return serving(id, traffic=traffic)


def found(*reports: WorkerReport, silent: tuple[str, ...] = (), topology: Topology = TOPOLOGY) -> set[ServingFlow]:
    members = [member(id, place=place) for id, place in PLACES.items()]
    picture = snapshot(*reports, members=members)
    return set(find_traffic(picture, find_places(members, topology), silent))


def test_what_goes_over_the_network_uses_both_nics_and_the_uplinks_between() -> None:
    assert found(moving("w-1", "w-3", sent=0.5)) == {
        ServingFlow("a/0", "out", 0.5),
        ServingFlow("l0", "out", 0.5, "uplink"),
        ServingFlow("l1", "in", 0.5, "uplink"),
        ServingFlow("b/0", "in", 0.5),
    }


def test_what_stays_in_a_domain_uses_its_links_and_no_nic() -> None:
    assert found(moving("w-1", "w-2", received=2.0)) == {
        ServingFlow("a/1", "out", 2.0, "domain"),
        ServingFlow("a/0", "in", 2.0, "domain"),
    }


def test_gpus_of_a_host_without_a_domain_use_the_links_to_its_memory() -> None:
    assert found(moving("w-4", "w-5", sent=0.25)) == {
        ServingFlow("c/0", "out", 0.25, "link"),
        ServingFlow("c/1", "in", 0.25, "link"),
    }


def test_what_both_ends_measured_counts_once_and_as_the_larger() -> None:
    flows = found(moving("w-1", "w-3", sent=0.5), moving("w-3", "w-1", received=0.75))
    assert {flow.rate for flow in flows} == {0.75}


def test_several_peers_add_up_on_the_links_that_they_share() -> None:
    two = serving("w-1", traffic=[PeerTraffic(peer=id, sent=0.5) for id in (b"w-3", b"w-4")])
    rates = {(flow.node, flow.direction): flow.rate for flow in found(two) if flow.over == "nic"}
    assert rates == {("a/0", "out"): 1.0, ("b/0", "in"): 0.5, ("c/0", "in"): 0.5}


def test_nothing_measured_is_no_traffic_and_a_peer_that_has_left_has_none() -> None:
    assert found(serving("w-1"), moving("w-3", "gone", sent=1.0)) == set()


@pytest.mark.parametrize(
    ("role", "assumed"),
    [
        ("prefill", {ServingFlow("a/0", "out", 1.0)}),
        ("decode", {ServingFlow("a/0", "in", 1.0)}),
        ("colocated", set()),
        (None, set()),
    ],
)
def test_traffic_that_was_not_measured_follows_from_the_role(role: Role | None, assumed: set[ServingFlow]) -> None:
    assert found(serving("w-1", role=role, traffic=None)) == assumed


def test_an_old_measurement_counts_as_none() -> None:
    old = replace(moving("w-1", "w-3", sent=0.5), role="prefill")
    assert found(old, silent=("w-1",)) == {ServingFlow("a/0", "out", 1.0)}
    heard = moving("w-3", "w-1", received=0.25)  # the other end's is not
    assert ServingFlow("b/0", "in", 0.25) in found(old, heard, silent=("w-1",))


def test_without_a_topology_traffic_goes_by_machines() -> None:
    members = [member("w-1"), member("w-2"), member("w-3", "another box")]
    reports = [moving("w-1", "w-2", sent=1e6), moving("w-3", "w-1", sent=2e6)]
    flows = find_traffic(snapshot(*reports, members=members), find_places(members, None), ())
    assert ServingFlow("w-1", "out", 1e6, "domain") in flows
    assert ServingFlow("another box", "out", 2e6) in flows
    assert ASSUMED_NIC > 2e6


def test_a_worker_without_measurements_is_named_with_what_is_assumed() -> None:
    reports = serving("w-1", role="prefill", traffic=None), serving("w-2", role="colocated"), serving("w-3")
    spare = WorkerReport(id="w-4", epoch=1, state="spare")
    assert explain_unknown(snapshot(*reports, spare), {"w-2"}) == [
        "the traffic of w-1 is not known (it measures none): taken by its role, prefill, as all of its NIC out",
        "the traffic of w-2 is not known (it is silent): taken by its role, colocated, as none",
    ]
