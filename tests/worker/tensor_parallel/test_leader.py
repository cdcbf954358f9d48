"""The rank that leads an instance has a layer run once all ranks have it."""

import asyncio

import pytest

from livescale.services.worker.engine.contract import AdapterUnavailable
from livescale.services.worker.tensor_parallel.leader import BRING_SECONDS, GroupLeader
from livescale.shared.bus.contract import Ack, Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.messages.model_parallel import RankAdapter
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.simulation.virtual_clock import VirtualClock
from livescale.shared.simulation.virtual_time import run
from livescale.shared.subjects import RANK_ADAPTER
from tests.worker.live.engines import EngineKind
from tests.worker.live.pool import worker_pool
from tests.worker.requests import random_prompt, submit
from tests.worker.tensor_parallel.ranked_workers import TARGET, ranked_workers, wanted


async def test_a_layer_is_run_once_the_slowest_rank_has_it() -> None:
    async with ranked_workers() as ranked:
        await ranked.have(TARGET, ranked.blocks - 1, 1)
        await ranked.fleet.until(lambda: ranked.fleet.state("t-0") == "live")
        assert ranked.fleet.state("t-1") == "loading"
        await ranked.fleet.admit("t-0", wanted(1))
        for layers in (1, 2):
            await ranked.have(TARGET, ranked.blocks - 1, layers + 1)
            await ranked.ran(layers)
            assert ranked.count("t-0", "live_layers") == layers


def test_a_target_that_is_told_to_serve_too_early_still_waits_for_the_slowest_rank() -> None:
    async def main() -> None:
        async with worker_pool("t", kind=EngineKind(ranks=2)) as pool:
            await pool.load("t", [0, 1], "zigzag")
            await pool.load("t", [2], "zigzag", ranks=[0])
            await pool.until(lambda: pool.state("t") == "live")
            await pool.serve("t")  # which is refused
            await pool.client.submit(submit("r", random_prompt(1, 90), max_tokens=3), "t")
            await asyncio.sleep(1.0)
            assert pool.count("t", "live_layers") == 1
            await pool.finish_loading("t")
            await pool.done()

    run(main(), limit_seconds=600)


@pytest.mark.parametrize("code", [409, 503, 429])
def test_a_rank_that_does_not_bring_an_adapter_has_left_or_says_why_or_is_given_up(code: int) -> None:
    async def refuse(ask: RankAdapter, context: Context) -> Ack:
        raise Refusal(code, "not here")

    async def main() -> None:
        broker, left = LocalBroker(VirtualClock(0.0)), list[str]()
        bus, began = broker.connect(), asyncio.get_running_loop().time()
        await bus.serve(ServiceInfo("worker", "w-1", "a rank"), [Endpoint(RANK_ADAPTER, refuse, {"id": "w-1"})])
        leader = GroupLeader(broker.connect(), "i", ["w-1"])
        leader.on_left = left.append
        with pytest.raises(AdapterUnavailable):
            await leader.bring("v")
        assert left == (["not here"] if code == 409 else [])
        waited = asyncio.get_running_loop().time() - began
        assert (waited >= BRING_SECONDS - 1.0) is (code == 429)

    run(main(), limit_seconds=2 * BRING_SECONDS)
