import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.planner.chains import CannotPlan, PlanIds, plan_chain
from shared.messages.membership import Holding, HostReport, Snapshot, WorkerReport
from shared.messages.scaling import Chain, Plan
from tests.control.fakes import whole
from tests.planner.made import ENTRY, SIZE, VERSION, host, member, serving, snapshot, spare


def plan(
    picture: Snapshot, count: int = 1, reserved: frozenset[str] = frozenset(), flows: dict[str, int] | None = None
) -> Plan:
    ids = PlanIds("scale-1", [f"i-{index}" for index in range(count)])
    return plan_chain(picture, ENTRY, VERSION, ids, reserved, flows)


def test_a_chain_goes_from_the_source_through_every_target() -> None:
    made = plan(snapshot(serving("w-1"), spare("w-2"), spare("w-3")), count=2)
    assert made.chains == [Chain(source="w-1", targets=["w-2", "w-3"])]
    assert [(one.id, one.ranks, one.role) for one in made.instances] == [
        ("i-0", ["w-2"], "colocated"),
        ("i-1", ["w-3"], "colocated"),
    ]
    assert made.reasons == [
        "source w-1: a worker with 0 flows out and 0 requests, the only one that holds the model",
        "targets w-2, w-3: spare, spread over machines",
    ]


@pytest.mark.parametrize(
    ("holders", "flows", "source"),
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
    holders: list[WorkerReport | HostReport], flows: dict[str, int], source: str
) -> None:
    made = plan(snapshot(*holders, spare("w-9")), flows=flows)
    assert made.chains[0].source == source


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
        plan(snapshot(useless, spare("w-9")))
    assert plan(snapshot(useless, host("host-0"), spare("w-9"))).chains[0].source == "host-0"


@pytest.mark.parametrize("lease", ["suspect", "dead"])
def test_who_may_be_dead_is_no_source(lease: str) -> None:
    members = [member("w-1", lease=lease), member("w-9")]
    with pytest.raises(CannotPlan, match="no worker or host holds the whole model"):
        plan(snapshot(serving("w-1"), spare("w-9"), members=members))


def test_targets_are_spread_over_machines() -> None:
    reports = [serving("w-0"), *(spare(f"w-{index}") for index in range(1, 6))]
    machines = {"w-0": "a", "w-1": "a", "w-2": "a", "w-3": "b", "w-4": "b", "w-5": "c"}
    members = [member(id, machine) for id, machine in machines.items()]
    made = plan(snapshot(*reports, members=members), count=4)
    # a has one already; b and c come first, then each has one.
    assert made.chains[0].targets == ["w-3", "w-5", "w-1", "w-4"]


def test_as_many_as_there_are_and_the_reason_says_how_many_are_missing() -> None:
    made = plan(snapshot(serving("w-1"), spare("w-2")), count=3)
    assert made.chains[0].targets == ["w-2"]
    assert [one.id for one in made.instances] == ["i-0"]
    assert made.reasons[1].endswith("2 more were wanted")


@pytest.mark.parametrize(
    "unfit",
    [
        {"arena_bytes": SIZE - 1},
        {"reserved": True},
        {"lease": "suspect"},
        {"address": None},
    ],
    ids=lambda unfit: next(iter(unfit)),
)
def test_without_a_worker_that_fits_there_is_no_plan(unfit: dict[str, object]) -> None:
    reports = [serving("w-1"), spare("w-2", arena_bytes=unfit.get("arena_bytes", SIZE))]  # type: ignore[arg-type]
    members = [member("w-1"), member("w-2", "box", **{k: v for k, v in unfit.items() if k in ("lease", "address")})]
    reserved = frozenset({"w-2"} if "reserved" in unfit else ())
    with pytest.raises(CannotPlan, match="no spare worker fits"):
        plan(snapshot(*reports, members=members), reserved=reserved)


@given(
    spares=st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from("abc"), st.integers(50, 200)), min_size=1, max_size=12
    ),
    count=st.integers(1, 8),
    taken=st.sets(st.integers(0, 30)),
)
def test_each_target_is_in_the_chain_once_and_fits(
    spares: list[tuple[int, str, int]], count: int, taken: set[int]
) -> None:
    workers = {f"w-{number}": (machine, arena) for number, machine, arena in spares}
    reports: list[WorkerReport | HostReport] = [
        host("host-0"),
        *(spare(id, arena) for id, (_, arena) in workers.items()),
    ]
    members = [member("host-0"), *(member(id, machine) for id, (machine, _) in workers.items())]
    reserved = frozenset(f"w-{number}" for number in taken)
    fits = {id for id, (_, arena) in workers.items() if arena >= SIZE} - reserved
    if not fits:
        with pytest.raises(CannotPlan):
            plan(snapshot(*reports, members=members), count, reserved)
        return
    made = plan(snapshot(*reports, members=members), count, reserved)
    [chain] = made.chains
    assert len(chain.targets) == len(set(chain.targets)) == min(count, len(fits))
    assert set(chain.targets) <= fits
    assert [instance.ranks for instance in made.instances] == [[target] for target in chain.targets]
    again = plan(snapshot(*reversed(reports), members=members[::-1]), count, reserved)
    assert again.chains == made.chains
