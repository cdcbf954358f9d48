"""What serving moves, from the reports of those who measured it; of others their role is all that is known."""

import pytest
from msgspec.structs import replace

from livescale.services.planner.places import find_places
from livescale.services.planner.plans.network import ServingFlow
from livescale.services.planner.serving_traffic import explain_unknown, find_traffic
from livescale.shared.messages.membership import PeerTraffic, Role, WorkerReport
from livescale.shared.topology.topology import ASSUMED_NIC, Topology
from tests.planner.made import member, serving, snapshot
from tests.planner.plans.made import cluster, machine

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
def test_what_nobody_measured_follows_from_the_role(role: Role | None, assumed: set[ServingFlow]) -> None:
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


def test_who_is_not_measured_is_named_with_what_is_taken_instead() -> None:
    reports = serving("w-1", role="prefill", traffic=None), serving("w-2", role="colocated"), serving("w-3")
    spare = WorkerReport(id="w-4", epoch=1, state="spare")
    assert explain_unknown(snapshot(*reports, spare), {"w-2"}) == [
        "the traffic of w-1 is not known (it measures none): taken by its role, prefill, as all of its NIC out",
        "the traffic of w-2 is not known (it is silent): taken by its role, colocated, as none",
    ]
