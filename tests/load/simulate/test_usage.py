"""What a simulated cluster used: workers in use, host memory, and bytes that crossed the network."""

import asyncio

import pytest

from livescale.load.simulate.cluster import virtual_cluster
from livescale.load.simulate.start import quiet
from livescale.load.simulate.usage import CountedFlows, UsageWatch
from livescale.shared.messages.scaling import Scale
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.fair_flows import FairMessage
from livescale.shared.subjects import SCALE
from livescale.shared.topology.paths import Resource
from tests.load.simulate.clusters import CONFIG, registered, settings, until_serving


def test_workers_count_from_their_load_and_the_network_carries_the_model_once_for_each() -> None:
    async def main() -> tuple[UsageWatch, CountedFlows, float]:
        async with virtual_cluster(settings(3)) as made:
            watch = UsageWatch(made.broker)
            await registered(made)
            before = sum(made.links.flows.network_bytes.values())
            await made.operator.call(SCALE, Scale(model="m", instances=3), timeout=5.0)
            await until_serving(made, 3)
            return watch, made.links.flows, sum(made.links.flows.network_bytes.values()) - before

    with quiet():
        watch, flows, sent = virtual_time.run(main(), limit_seconds=300)
    assert [count for _, count in watch.workers] == [0, 1, 2, 3]
    size = max(held for _, held in watch.cached)
    assert size > CONFIG.num_hidden_layers
    assert 2 * size <= sent < 2.1 * size
    assert sum(flows.network_bytes.values()) >= sent


def test_a_worker_that_died_is_no_longer_in_use() -> None:
    async def main() -> list[float]:
        async with virtual_cluster(settings(1)) as made:
            watch = UsageWatch(made.broker)
            await registered(made)
            await made.kill("worker-0")
            await asyncio.sleep(5)
            return [count for _, count in watch.workers]

    with quiet():
        assert virtual_time.run(main(), limit_seconds=300) == [0, 1, 0]


def test_only_what_crosses_the_network_counts_in_the_seconds_in_which_it_passed() -> None:
    flows = CountedFlows()
    for kind, size in (("nic_out", 10), ("domain_out", 7)):
        flow = flows.open([Resource(kind, "a", 10.0)])  # type: ignore[arg-type]
        flows.add(flow, FairMessage(size, lambda: None), 4.2)
        flows.settle(4.2)
        flows.end(flow)
    assert flows.network_bytes == pytest.approx({4: 8, 5: 2})
