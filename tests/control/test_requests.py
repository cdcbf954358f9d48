"""Requests, seen by a gateway: each ends once, whatever happens meanwhile."""

import asyncio

import pytest

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import RouterReport
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import HEARTBEAT
from tests.control.control_plane import ControlPlane, control_plane, spec
from tests.control.fakes import SLOTS
from tests.control.queries import fake


async def keep(plane: ControlPlane, instances: int) -> None:
    await plane.register(spec(min_instances=instances, max_instances=instances))
    await plane.until_serving(instances)


def test_requests_are_spread_over_instances_and_the_rest_waits() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await keep(plane, 2)
            ahead = [await plane.gateway.submit(f"r-{index}", max_tokens=50) for index in range(2 * SLOTS + 2)]
            assert ahead == [0] * (2 * SLOTS + 1) + [1]
            assert [len(fake(plane, f"worker-{n}").engine.running) for n in (0, 1)] == [SLOTS, SLOTS]
            await asyncio.sleep(5.0)
            assert len(plane.gateway.finished) == 2 * SLOTS + 2

    virtual_time.run(main(), limit_seconds=100)


def test_a_worker_has_a_request_before_the_gateway_is_answered() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await keep(plane, 1)
            await plane.gateway.submit("r-1")
            assert [admit.request.request_id for admit in fake(plane, "worker-0").engine.admitted] == ["r-1"]

    virtual_time.run(main(), limit_seconds=100)


def test_a_worker_that_dies_loses_nothing_for_good() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await keep(plane, 2)
            for index in range(4):
                await plane.gateway.submit(f"r-{index}", max_tokens=100)
            await asyncio.sleep(1.0)
            lost = sorted(fake(plane, "worker-1").engine.running)
            assert len(lost) == 2
            await plane.kill("worker-1")
            await asyncio.sleep(10.0)
            assert sorted(plane.gateway.lost) == lost
            assert all(plane.gateway.tokens[f"r-{index}"] == list(range(1, 101)) for index in range(4))
            resumed = [admit.request for admit in fake(plane, "worker-0").engine.admitted if admit.request.generated]
            assert sorted(request.request_id for request in resumed) == lost

    virtual_time.run(main(), limit_seconds=100)


def test_a_worker_that_refuses_gets_the_request_later_or_another_does() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await keep(plane, 1)
            fake(plane, "worker-0").faults.refuse_admissions = 2
            await plane.gateway.submit("r-1")
            await asyncio.sleep(3.0)
            assert plane.gateway.finished == {"r-1": "length"}
            assert [admit.attempt for admit in fake(plane, "worker-0").engine.admitted] == [2]

    virtual_time.run(main(), limit_seconds=100)


def test_a_request_past_its_deadline_in_the_queue_ends_with_a_row() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            for index in range(SLOTS):
                await plane.gateway.submit(f"r-{index}", max_tokens=200)
            await plane.gateway.submit("late", seconds=1.0)
            await asyncio.sleep(1.2)
            assert plane.gateway.finished == {"late": "deadline"}

    virtual_time.run(main(), limit_seconds=100)


def test_a_cancelled_request_leaves_the_queue_or_its_worker() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            for index in range(SLOTS + 1):
                await plane.gateway.submit(f"r-{index}", max_tokens=200)
            await asyncio.sleep(0.1)
            plane.gateway.cancel("r-0")
            plane.gateway.cancel("r-4")
            plane.gateway.cancel("unknown")
            await asyncio.sleep(0.1)
            assert fake(plane, "worker-0").engine.cancelled == ["r-0"]
            assert sorted(fake(plane, "worker-0").engine.running) == ["r-1", "r-2", "r-3"]

    virtual_time.run(main(), limit_seconds=100)


def test_the_requests_of_a_dead_gateway_are_stopped() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            await plane.gateway.submit("r-1", max_tokens=200)
            await plane.kill("gateway-0")
            await asyncio.sleep(3.0)
            assert fake(plane, "worker-0").engine.cancelled == ["r-1"]
            assert fake(plane, "worker-0").engine.running == {}

    virtual_time.run(main(), limit_seconds=100)


@pytest.mark.parametrize(("model", "code", "words"), [("x", 404, "'x' is not registered"), ("bad", 503, "cut short")])
def test_a_request_for_no_model_or_a_broken_one_is_refused(model: str, code: int, words: str) -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await plane.register(spec("bad", path="/broken"))
            await asyncio.sleep(2.0)
            with pytest.raises(Refusal, match=words) as refused:
                await plane.gateway.submit("r-1", model=model)
            assert refused.value.code == code

    virtual_time.run(main(), limit_seconds=100)


def test_a_model_is_served_as_soon_as_it_is_registered() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await plane.register(spec("new"))
            await plane.gateway.submit("r-1", model="new")
            await asyncio.sleep(3.0)
            assert plane.gateway.finished == {"r-1": "length"}

    virtual_time.run(main(), limit_seconds=100)


def test_a_full_queue_is_refused_with_the_time_to_come_back() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            for index in range(SLOTS + 50):
                await plane.gateway.submit(f"r-{index}", max_tokens=200)
            with pytest.raises(Refusal, match="50 requests") as refused:
                await plane.gateway.submit("one-more")
            assert (refused.value.code, refused.value.retry_after_ms) == (429, 500)

    virtual_time.run(main(), limit_seconds=100)


def test_a_change_of_the_queue_is_reported_at_once_but_not_more_than_every_50_ms() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            await keep(plane, 1)
            reports = await plane.operator.subscribe(HEARTBEAT, service="router")
            heard: list[RouterReport] = []

            async def listen() -> None:
                async for received in reports:
                    assert isinstance(received.message, RouterReport)
                    heard.append(received.message)

            listening = asyncio.create_task(listen())
            for index in range(SLOTS + 30):
                await plane.gateway.submit(f"r-{index}", max_tokens=200)
            await asyncio.sleep(0.02)
            assert heard[0].queues[0].waiting_requests > 0
            await asyncio.sleep(0.4)
            assert heard[-1].queues[0].waiting_requests == 30
            assert len(heard) <= 4
            await reports.close()
            await listening

    virtual_time.run(main(), limit_seconds=100)
