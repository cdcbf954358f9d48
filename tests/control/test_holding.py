"""Models that sleep: requests are held, wake them once, and are refused where that is hopeless."""

import asyncio

import pytest

from livescale.services.router.admission import REPLACEMENT_SECONDS
from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.requests import Submit
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import SUBMIT
from tests.control.control_plane import control_plane, spec
from tests.control.fake_worker import Faults
from tests.control.fakes import CLOCK, SLOTS


def test_a_burst_at_zero_wakes_one_instance_by_one_decision() -> None:
    async def main() -> None:
        async with control_plane(register=False) as plane:
            await plane.register(spec("z", min_instances=0))
            await asyncio.sleep(1.0)
            for index in range(SLOTS - 1):
                await plane.gateway.submit(f"r-{index}", model="z")
            await asyncio.sleep(1.0)
            assert set(plane.gateway.finished.values()) == {"length"}
            assert len(plane.gateway.finished) == SLOTS - 1
            woken = [(one.current, one.target, one.rule) for one in await plane.decisions("z") if one.action == "out"]
            assert woken == [(0, 1, "from-zero")]
            assert len(await plane.records("z")) == 1
            await plane.until_serving(0, "z")

    virtual_time.run(main(), limit_seconds=100)


def test_a_busy_instance_is_not_put_to_sleep() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await plane.register(spec(min_instances=0))
            await plane.gateway.submit("long", max_tokens=400)
            await asyncio.sleep(6.0)
            assert plane.gateway.finished == {}
            assert len(await plane.serving()) == 1
            await plane.until_serving(0)
            assert plane.gateway.finished == {"long": "length"}

    virtual_time.run(main(), limit_seconds=100)


def test_what_has_no_worker_to_wait_for_is_held_until_its_deadline_and_the_monitor_says_why() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            await plane.register(spec("z", min_instances=0))
            await asyncio.sleep(1.0)
            await plane.gateway.submit("held", model="z", seconds=2.0)
            await asyncio.sleep(1.9)
            assert plane.gateway.finished == {}
            said = (await plane.decisions("z"))[-1]
            assert (said.action, said.rule) == ("hold", "capacity")
            assert said.reason.startswith("1 wanted, no spare worker fits")
            await asyncio.sleep(0.3)
            assert plane.gateway.finished == {"held": "deadline"}

    virtual_time.run(main(), limit_seconds=100)


def test_a_held_request_ends_by_the_time_it_had_left_where_the_gateways_clock_is_ahead() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            await plane.register(spec("z", min_instances=0))
            await asyncio.sleep(1.0)
            late = CLOCK.wall() + 3600.0
            request = Submit(request_id="r", model="z", gateway="gateway-0", prompt=[1], deadline=late, timeout_s=1.0)
            await plane.gateway.bus.call(SUBMIT, request, timeout=2.0)
            await asyncio.sleep(1.2)
            assert plane.gateway.finished == {"r": "deadline"}

    virtual_time.run(main(), limit_seconds=100)


def test_without_any_worker_a_request_is_refused_at_once() -> None:
    async def main() -> None:
        async with control_plane(workers=0, register=False) as plane:
            await plane.register(spec("z", min_instances=0))
            await asyncio.sleep(6.0)
            with pytest.raises(Refusal, match="'z' cannot be loaded: no worker is alive") as refused:
                await plane.gateway.submit("r", model="z")
            assert (refused.value.code, refused.value.retry_after_ms) == (503, None)
            plane.add_worker(0)
            await asyncio.sleep(1.0)
            await plane.gateway.submit("r", model="z")
            await asyncio.sleep(1.0)
            assert plane.gateway.finished == {"r": "length"}

    virtual_time.run(main(), limit_seconds=100)


def test_a_held_request_is_told_once_no_worker_comes_back_to_load_its_model() -> None:
    async def main() -> None:
        async with control_plane(workers=1, register=False) as plane:
            await plane.register(spec("z", min_instances=0))
            await plane.kill("worker-0")
            await plane.gateway.submit("r", model="z", seconds=600.0)
            await asyncio.sleep(REPLACEMENT_SECONDS)
            assert plane.gateway.finished == {}, "a worker may be on its way back"
            await asyncio.sleep(4.0)
            assert plane.gateway.finished == {"r": "error"}

    virtual_time.run(main(), limit_seconds=300)


def test_over_the_bound_while_it_loads_the_answer_is_what_is_left_of_the_load() -> None:
    async def main() -> None:
        async with control_plane(workers=0, register=False) as plane:
            plane.add_worker(0, Faults(stall_after_blocks=2))
            await plane.register(spec("z", min_instances=0))
            await asyncio.sleep(1.0)
            for index in range(50):
                await plane.gateway.submit(f"r-{index}", model="z")
            await asyncio.sleep(2.0)
            with pytest.raises(Refusal, match="50 requests") as refused:
                await plane.gateway.submit("one-more", model="z")
            assert refused.value.code == 429
            # Half of it took two seconds.
            assert refused.value.retry_after_ms == pytest.approx(2000, rel=0.2)

    virtual_time.run(main(), limit_seconds=100)


def test_a_model_that_waits_takes_the_idle_instance_of_another_at_once() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            await plane.register(spec(min_instances=0, downscale_to_zero_delay_s=60.0))
            await plane.register(spec("z", min_instances=0, downscale_to_zero_delay_s=60.0))
            await asyncio.sleep(2.0)
            begun = CLOCK.wall()
            await plane.gateway.submit("first", model="z", max_tokens=1)
            await plane.until_serving(1, "z")
            assert CLOCK.wall() - begun < 2.0
            given = [one for one in await plane.decisions("m") if one.action == "in"]
            assert [(one.rule, one.target) for one in given] == [("yield", 0)]
            assert given[0].reason.startswith("z needs an instance and no spare worker fits")
            assert plane.gateway.finished == {"first": "length"}

    virtual_time.run(main(), limit_seconds=100)
