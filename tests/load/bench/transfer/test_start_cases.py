"""Which copies a start begins with, and when a pipeline can run."""

from livescale.load.bench.transfer.shaping import emulated
from livescale.load.bench.transfer.start_cases import DISK, HOST_LINK, STARTS, StartCase
from livescale.services.planner.plans.execution_pipelines import pipeline_ready
from livescale.services.planner.plans.make_plan import Prediction, make_plan, predict
from livescale.services.planner.plans.plan import TransferPlan

RATE = 100e6

SIZES = [8_000_000] * 12


def planned(start: StartCase) -> tuple[TransferPlan, Prediction]:
    with emulated(4, RATE, {"count": 1, "host-link": f"{HOST_LINK * RATE:.0f} B/s"}, DISK * RATE) as (file, _):
        multicast = start.multicast(file, SIZES)
    plan = make_plan("binomial", multicast, blocks=len(SIZES))
    return plan, predict(multicast, plan, 1 << 20)


def executable(start: StartCase) -> float:
    plan, prediction = planned(start)
    return min(pipeline_ready(nodes, prediction.ready) for nodes in plan.pipelines)


def test_hosts_that_load_their_own_copies_begin_with_different_parts_of_them() -> None:
    plan, _ = planned(next(start for start in STARTS if start.case == "warm, k = 3"))
    assert {flow.over for flow in plan.flows} == {"host_link"}
    assert len({flow.blocks[0] for flow in plan.flows}) == 3


def test_the_more_have_it_in_memory_the_sooner_a_pipeline_runs_and_disks_are_last() -> None:
    times = {start.case: executable(start) for start in STARTS}
    assert times["warm, k = 3"] < times["warm, k = 2"] < times["warm, k = 1"]
    assert times["warm, k = 3"] < times["cold, k = 3"] < times["cold, k = 1"]
