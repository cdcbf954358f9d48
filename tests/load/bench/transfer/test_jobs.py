from livescale.load.bench.transfer.jobs import CarriedPlan
from livescale.load.bench.transfer.multicast import flat, middle
from livescale.services.planner.plans.make_plan import make_plan

RATE = 100e6
SIZES = [1_000_000] * 4


def carried(seconds: float, sources: int = 1) -> CarriedPlan:
    _, multicast = flat(4, sources, RATE, SIZES)
    plan = make_plan("binomial", multicast, sources=sources, blocks=4)
    return CarriedPlan(
        plan, {target: {block: seconds * (block + 1) / 4 for block in range(4)} for target in plan.targets}
    )


def test_a_plan_took_as_long_as_its_last_target_and_the_median_of_runs_counts() -> None:
    runs = [carried(3.0), carried(1.0), carried(2.0)]
    assert [run.seconds for run in runs] == [3.0, 1.0, 2.0]
    assert middle(runs) is runs[2]


def test_a_pipeline_is_executable_when_its_nodes_have_every_block_between_them() -> None:
    run = carried(4.0)
    first, *others = run.plan.targets
    early = {first: {0: 0.5, 1: 0.6, 2: 4.0, 3: 4.0}, others[0]: {0: 4.0, 1: 4.0, 2: 0.7, 3: 0.9}}
    ready = {**run.ready, **early}
    assert CarriedPlan(run.plan, ready).executable == 0.9
