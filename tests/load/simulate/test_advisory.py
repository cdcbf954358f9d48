"""A monitor that only advises, in the whole system: it says what it would do, and operators do it."""

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from livescale.load.simulate.client import replay
from livescale.load.simulate.cluster import VirtualCluster, virtual_cluster
from livescale.load.simulate.start import quiet, workers_in
from livescale.services.cli.status import ask_status
from livescale.services.cli.why import ask_why, explain
from livescale.services.monitor.settings import MonitorSettings
from livescale.shared.messages.scaling import Decision, Scale
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import SCALE
from tests.load.simulate.clusters import asks, registered, settings, until_serving

BURST = asks(60, rate=60.0, prompt=1200, tokens=4)  # of more prompts than one instance computes in time


def told(decisions: list[Decision]) -> list[tuple[str, int, int, bool]]:
    return [(one.action, one.current, one.target, one.advice) for one in decisions if one.action != "hold"]


def play(act: Callable[[VirtualCluster], Awaitable[None]]) -> None:
    async def main() -> None:
        advisory = replace(settings(3), monitor=MonitorSettings(scaling="advisory"))
        async with virtual_cluster(advisory) as made:
            await registered(made, min_instances=1, max_instances=3, downscale_delay_s=2)
            await act(made)

    with quiet():
        virtual_time.run(main(), limit_seconds=600)


def test_load_leads_to_advice_that_nobody_carries_out_and_everybody_can_read() -> None:
    async def act(made: VirtualCluster) -> None:
        sending = asyncio.create_task(replay(made.gateway, "m", BURST))
        await asyncio.sleep(1.0)
        status = await ask_status(made.operator)
        assert status.queues is not None
        assert (status.queues[0].scaling or "").startswith("advises out to 3: ")
        await sending
        why = await ask_why(made.operator, "m", 100, 1000)
        first, *later = told(why.decisions)
        assert first == ("out", 0, 1, False)  # its fewest instances are not advice
        assert ("out", 1, 3, True) in later
        assert all(advice for *_, advice in later)
        assert [record.decision.target for record in why.scales] == [1]
        assert any("advises out 1 -> 3, by monitor" in line for line in explain("m", why.decisions, why.scales))
        assert len(await workers_in(made, "serving")) == 1

    play(act)


def test_what_an_operator_scales_stays_and_is_advised_to_be_given_back_once() -> None:
    async def act(made: VirtualCluster) -> None:
        await made.operator.call(SCALE, Scale(model="m", instances=3), timeout=5.0)
        await until_serving(made, 3)
        await asyncio.sleep(20)
        assert len(await workers_in(made, "serving")) == 3
        why = await ask_why(made.operator, "m", 100, 1000)
        assert told(why.decisions) == [("out", 0, 1, False), ("in", 3, 2, True)]

    play(act)


def test_an_instance_that_died_is_replaced_without_advice() -> None:
    async def act(made: VirtualCluster) -> None:
        [serving] = await workers_in(made, "serving")
        await made.kill(serving)
        await asyncio.sleep(10)
        assert len(await workers_in(made, "serving")) == 1

    play(act)
