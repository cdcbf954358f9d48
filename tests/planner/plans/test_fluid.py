"""Plans that are simulated as fluids, by what can be worked out by hand."""

import pytest

from livescale.services.planner.plans.make_plan import predict
from livescale.services.planner.plans.plan import TransferFlow
from tests.planner.plans.clusters import CHUNK, EVERY, cluster, parts, plan_of, singles


def test_a_flow_that_is_through_leaves_its_share_to_the_others() -> None:
    topology = cluster(*singles(3))
    multicast = parts(topology, {"h0/0": EVERY}, {"h1/0": (0,), "h2/0": EVERY})
    plan = plan_of(multicast, TransferFlow("h0/0", "h1/0", (0,)), TransferFlow("h0/0", "h2/0", EVERY))
    prediction = predict(multicast, plan, CHUNK)
    assert prediction.ready == {
        "h1/0": {0: pytest.approx(200)},
        "h2/0": pytest.approx({0: 200, 1: 300, 2: 400, 3: 500}),
    }
