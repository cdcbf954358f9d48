"""Processes and the bus go away and come back."""

import asyncio

import pytest

from livescale.shared.bus.contract import Refusal
from livescale.shared.messages.membership import WorkerReport
from livescale.shared.messages.registry import ModelEntry
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import HEARTBEAT
from tests.control.fakes import FakeHost, FakeWorker
from tests.control.plane import Plane, control_plane, spec


async def lease_of(plane: Plane, id: str) -> str | None:
    members = {member.id: member.lease for member in (await plane.snapshot()).members}
    return members.get(id)


async def entry_of(plane: Plane, model: str) -> ModelEntry:
    return next(entry for entry in (await plane.snapshot()).models if entry.spec.name == model)


def test_every_process_is_a_member() -> None:
    async def main() -> None:
        async with control_plane(workers=2) as plane:
            members = (await plane.snapshot()).members
            assert [member.id for member in members if member.lease == "alive"] == [
                *("gateway-0", "host-0", "monitor-0", "planner-0", "registry-0", "router-0", "worker-0", "worker-1")
            ]
            assert len({member.epoch for member in members}) == len(members)

    virtual_time.run(main(), limit_seconds=100)


def test_a_killed_worker_is_suspected_then_dead_and_replaced() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await plane.kill("worker-0")
            await asyncio.sleep(2.0)
            assert await lease_of(plane, "worker-0") == "suspect"
            await asyncio.sleep(1.0)
            assert await lease_of(plane, "worker-0") == "dead"
            await plane.until_serving(1)
            assert await plane.serving() == ["worker-1"]
            assert [one.rule for one in await plane.decisions() if one.action == "out"] == ["minimum", "minimum"]

    virtual_time.run(main(), limit_seconds=100)


def test_a_bus_outage_kills_nobody_and_work_goes_on_after_it() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            plane.broker.down()
            await asyncio.sleep(20.0)
            plane.broker.up()
            await asyncio.sleep(4.0)
            assert all(member.lease == "alive" for member in (await plane.snapshot()).members)
            assert await plane.serving() == ["worker-0"]
            await plane.gateway.submit("r-1")
            await asyncio.sleep(1.0)
            assert plane.gateway.finished == {"r-1": "length"}
            assert len(await plane.records()) == 1

    virtual_time.run(main(), limit_seconds=100)


def test_a_worker_that_speaks_with_a_dead_epoch_joins_again_as_a_spare() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            worker = plane.fabric["worker-0"]
            assert isinstance(worker, FakeWorker)
            epoch = worker.membership.epoch
            plane.broker.lose = lambda subject: subject == "hb.worker.worker-0"
            await asyncio.sleep(3.0)
            assert await lease_of(plane, "worker-0") == "dead"
            plane.broker.lose = lambda subject: False
            await asyncio.sleep(1.0)
            assert worker.membership.epoch > epoch
            assert (worker.state, await lease_of(plane, "worker-0")) == ("spare", "alive")
            await plane.until_serving(1)

    virtual_time.run(main(), limit_seconds=100)


@pytest.mark.parametrize("service", ["registry", "router", "planner", "monitor"])
def test_a_service_that_is_restarted_goes_on(service: str) -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await plane.kill(f"{service}-0")
            await asyncio.sleep(0.2)
            plane.restart(service)
            await asyncio.sleep(5.0)
            assert await plane.serving() == ["worker-0"]
            for index in range(30):
                await plane.gateway.submit(f"r-{index}", max_tokens=50)
            await plane.until_serving(3)
            await plane.until_serving(1)
            assert len(plane.gateway.finished) == 30
            assert plane.gateway.lost == []

    virtual_time.run(main(), limit_seconds=100)


def test_what_a_dead_planner_had_loading_is_freed_and_planned_again() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            target = plane.fabric["worker-1"]
            assert isinstance(target, FakeWorker)
            await plane.scale(2)
            await asyncio.sleep(0.01)
            assert target.order is not None
            await plane.kill("planner-0")
            await asyncio.sleep(1.0)
            plane.broker.values.clear()  # with what it had saved, its successor would go on
            plane.restart("planner")
            await asyncio.sleep(1.0)
            assert [abort.reason for abort in target.aborts] == ["the plan does not run any more"]
            assert target.state == "spare"
            await plane.scale(2)
            await plane.until_serving(2)

    virtual_time.run(main(), limit_seconds=100)


def test_a_restarted_registry_keeps_models_members_and_epochs() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            before = {member.id: member.epoch for member in (await plane.snapshot()).members}
            await plane.register(spec(max_instances=2))
            await asyncio.sleep(0.1)
            await plane.kill("registry-0")
            plane.restart("registry")
            await asyncio.sleep(4.0)
            after = {member.id: member.epoch for member in (await plane.snapshot()).members}
            assert {id: epoch for id, epoch in after.items() if id != "registry-0"} == {
                id: epoch for id, epoch in before.items() if id != "registry-0"
            }
            assert after["registry-0"] > before["registry-0"]
            entry = await entry_of(plane, "m")
            assert (entry.state, entry.spec.max_instances) == ("ready", 2)

    virtual_time.run(main(), limit_seconds=100)


def test_a_store_that_lost_everything_gets_it_back() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            plane.broker.down()
            plane.broker.values.clear()
            plane.broker.up()
            await asyncio.sleep(2.0)
            assert {"models.m", "members.worker-0", "members.registry-0"} <= set(plane.broker.values)
            assert f"scales.{(await plane.records())[0].id}" in plane.broker.values

    virtual_time.run(main(), limit_seconds=100)


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [("/missing", 422, "/missing: no config.json"), ("", 400, "path must name a directory")],
)
def test_a_host_s_refusal_is_the_operator_s_error(path: str, code: int, words: str) -> None:
    async def main() -> None:
        async with control_plane() as plane:
            with pytest.raises(Refusal, match=words) as refused:
                await plane.register(spec("x", path=path))
            assert refused.value.code == code
            assert [entry.spec.name for entry in (await plane.snapshot()).models] == ["m"]

    virtual_time.run(main(), limit_seconds=100)


def test_a_model_that_cannot_be_read_is_tried_again_ever_more_seldom_until_it_can() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            host = plane.fabric["host-0"]
            assert isinstance(host, FakeHost)
            host.unreadable = "Input/output error"
            await plane.register(spec("x", min_instances=0))
            await asyncio.sleep(40.0)
            entry = await entry_of(plane, "x")
            assert (entry.state, entry.error) == ("failed", "Input/output error")
            assert 4 <= host.reads.count("x") <= 7
            host.unreadable = None
            await asyncio.sleep(60.0)
            entry = await entry_of(plane, "x")
            assert (entry.state, entry.error) == ("ready", None)

    virtual_time.run(main(), limit_seconds=200)


def test_without_a_host_a_model_cannot_be_registered() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            await plane.kill("host-0")
            await asyncio.sleep(4.0)
            with pytest.raises(Refusal, match="livescale run host") as refused:
                await plane.register(spec("x"))
            assert refused.value.code == 503

    virtual_time.run(main(), limit_seconds=100)


def test_a_report_with_a_stale_epoch_changes_nothing() -> None:
    async def main() -> None:
        async with control_plane() as plane:
            stale = WorkerReport(id="worker-1", epoch=1, state="serving", model="m", instance="i-old")
            plane.operator.publish(HEARTBEAT, stale, service="worker", id="worker-1")
            await asyncio.sleep(0.01)
            assert await plane.serving() == ["worker-0"]

    virtual_time.run(main(), limit_seconds=100)
