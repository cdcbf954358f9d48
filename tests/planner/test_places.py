"""Where members are: by the topology where there is one, else by their machines."""

from livescale.services.planner.places import find_places
from livescale.shared.messages.membership import Member, ServiceName
from livescale.shared.topology.file import find_topology
from livescale.shared.topology.paths import path_between

CLUSTER = find_topology("cluster-b")


def member(id: str, host: str = "box", place: str | None = None, service: ServiceName = "worker") -> Member:
    return Member(service=service, id=id, pid=1, host=host, epoch=1, lease="alive", place=place)


def test_members_are_where_they_say_in_the_topology() -> None:
    members = [member("worker-0", place="b0/0"), member("worker-1", place="b1/7"), member("host-0", "b0", "b0", "host")]
    places = find_places(members, CLUSTER)
    assert {id: place.id for id, place in places.items()} == {"worker-0": "b0/0", "worker-1": "b1/7", "host-0": "b0"}
    assert path_between(places["worker-0"], places["worker-1"]).rate == 12.5e9


def test_who_is_nowhere_in_the_topology_is_left_out() -> None:
    members = [member("worker-0"), member("worker-1", place="z/0"), member("router-0", service="router")]
    assert find_places(members, CLUSTER) == {}
    assert find_places([member("router-0", service="router")], None) == {}


def test_without_a_topology_each_machine_is_a_host_and_its_workers_are_one_domain() -> None:
    members = [member("worker-0"), member("worker-1"), member("host-0", service="host"), member("worker-2", "other")]
    places = find_places(members, None)
    assert path_between(places["worker-0"], places["worker-1"]).over == "domain"
    assert path_between(places["host-0"], places["worker-1"]).over == "host_link"
    assert path_between(places["worker-0"], places["worker-2"]).over == "network"
    assert path_between(places["host-0"], places["worker-2"]).over == "network"


def test_with_a_link_rate_each_process_has_one_link_for_all_that_leaves_it_whatever_machine_it_is_on() -> None:
    members = [member("worker-0"), member("worker-1"), member("host-0", service="host")]
    places = find_places(members, None, link_rate=1e8)
    path = path_between(places["host-0"], places["worker-1"])
    assert (path.over, path.rate) == ("network", 1e8)
    assert path_between(places["worker-0"], places["worker-1"]).over == "network"
    assert {place.machine for place in places.values()} == {"box"}
