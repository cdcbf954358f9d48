"""Every plan policy as the planner carries it out, under virtual time."""

import pytest

from livescale.services.planner.plans.plan import Policy
from livescale.shared.messages.transfers import Flow, Plan
from livescale.shared.simulation import virtual_time
from tests.control.control_plane import control_plane, spec
from tests.control.fake_worker import FakeWorker
from tests.control.fakes import BLOCK_BYTES, BLOCKS, RATE
from tests.control.queries import last_out


def scaled_out(policy: Policy, rate: float = RATE) -> Plan:
    """The plan by which four more workers got the model, each block once."""
    plans: list[Plan] = []

    async def main() -> None:
        async with control_plane(workers=5, policy=policy, rate=rate) as plane:
            await plane.register(spec(min_instances=5))
            await plane.until_serving(5)
            workers = [node for node in plane.fabric.values() if isinstance(node, FakeWorker)]
            assert [sorted(worker.received) for worker in workers] == [list(range(BLOCKS))] * 5
            record = last_out(await plane.records())
            assert (record.state, record.plan is not None) == ("done", True)
            if record.plan is not None:
                plans.append(record.plan)

    virtual_time.run(main(), limit_seconds=100)
    return plans[0]


def hops(flows: list[Flow]) -> list[tuple[str, str]]:
    return [(flow.sender, flow.receiver) for flow in flows]


def test_fanout_sends_everything_from_the_sources() -> None:
    assert {sender for sender, _ in hops(scaled_out("fanout").flows)} == {"worker-0", "host-0"}


def test_a_tree_has_everyone_pass_on_to_two() -> None:
    made = hops(scaled_out("tree").flows)
    assert made == [("worker-0", "worker-1"), ("worker-0", "worker-2"), ("host-0", "worker-3"), ("host-0", "worker-4")]


def test_a_binomial_pipeline_is_carried_out_by_steps_from_every_source() -> None:
    made = scaled_out("binomial")
    assert {sender for sender, _ in hops(made.flows)} > {"worker-0", "host-0"}
    assert all(flow.steps for flow in made.flows)
    assert any("sub-groups" in reason for reason in made.reasons)


@pytest.mark.parametrize("policy", ["chains", "binomial", "tree", "fanout", "ring"])
def test_where_rates_are_known_times_are_predicted(policy: Policy) -> None:
    made = scaled_out(policy)
    assert sorted(made.predicted) == sorted(rank for instance in made.instances for rank in instance.ranks)
    assert min(made.predicted.values()) >= BLOCKS * BLOCK_BYTES / RATE - 1e-9


def test_without_rates_nothing_is_predicted() -> None:
    assert scaled_out("chains", rate=0.0).predicted == {}
