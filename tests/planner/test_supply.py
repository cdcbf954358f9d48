from collections.abc import Iterable, Mapping

import pytest
from msgspec.structs import replace

from livescale.services.planner.orders import ticketed
from livescale.services.planner.places import find_places
from livescale.services.planner.plans.chains import plan_chains
from livescale.services.planner.plans.plan import CannotPlan, TransferPlan
from livescale.services.planner.plans.predict import predict
from livescale.services.planner.supply import Supply
from livescale.shared.messages.membership import Holding, HostReport, WorkerReport
from livescale.shared.messages.registry import Snapshot
from tests.control.fakes import BLOCKS, manifest, whole
from tests.planner.made import VERSION, host, member, serving, snapshot, spare

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
def test_who_lacks_the_parameters_or_may_lose_them_is_no_source(useless: WorkerReport) -> None:
    with pytest.raises(CannotPlan, match="no worker or host holds the whole model"):
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
    with pytest.raises(CannotPlan, match="no worker or host holds the whole model"):
        planned(snapshot(reading("host-0", ready, version), spare("w-9")), "w-9")


@pytest.mark.parametrize("lease", ["suspect", "dead"])
def test_who_may_be_dead_neither_gives_nor_takes(lease: str) -> None:
    reports = serving("w-1"), spare("w-9")
    with pytest.raises(CannotPlan, match="no worker or host holds the whole model"):
        planned(snapshot(*reports, members=[member("w-1", lease=lease), member("w-9")]), "w-9")
    with pytest.raises(CannotPlan, match="w-9 cannot be reached"):
        planned(snapshot(*reports, members=[member("w-1"), member("w-9", lease=lease)]), "w-9")


def test_who_is_going_to_have_the_model_passes_it_on_before_a_busy_source_sends_twice() -> None:
    picture = snapshot(serving("w-1", flows_out=1), serving("w-2", state="loading", holding=None), spare("w-9"))
    assert senders(planned(picture, "w-9", receiving=["w-2"])) == [("w-2", "w-9")]


def test_who_sends_for_a_running_plan_has_an_equal_share_of_its_nic_left_for_another() -> None:
    made = planned(snapshot(serving("w-1"), serving("w-2"), spare("w-9")), "w-9", sending={"w-1": 1})
    assert made.reasons == ("not from w-1 (50% of its NIC out is taken)",)
    made = planned(snapshot(serving("w-1"), serving("w-2"), spare("w-9")), "w-9", sending={"w-1": 3})
    assert made.reasons == ("not from w-1 (75% of its NIC out is taken)",)


def test_whoever_was_just_lost_sends_again_only_where_nobody_else_can() -> None:
    both = snapshot(serving("w-1"), serving("w-2"), spare("w-9"))
    assert senders(planned(both, "w-9", avoid=["w-1"])) == [("w-2", "w-9")]
    assert senders(planned(snapshot(serving("w-1"), spare("w-9")), "w-9", avoid=["w-1"])) == [("w-1", "w-9")]
