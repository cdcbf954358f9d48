"""Models that are replaced by another version, or removed, while they are served."""

import asyncio
from contextlib import suppress

import pytest

from livescale.shared.bus.contract import BusError, Refusal
from livescale.shared.messages.model_spec import ModelSpec
from livescale.shared.messages.registry import Register
from livescale.shared.simulation import virtual_time
from livescale.shared.subjects import REGISTER
from tests.control.control_plane import ControlPlane, control_plane, spec
from tests.control.queries import copies, entry_of, host, kept

NEW = "v-m-/new"


async def versions(plane: ControlPlane) -> list[str]:
    """The versions of all instances that serve; none while there is no registry to ask."""
    with suppress(BusError):
        return sorted(worker.version or "" for worker in (await plane.snapshot()).workers if worker.state == "serving")
    return []


async def until_replaced(plane: ControlPlane, count: int) -> None:
    async def holds() -> bool:
        return await versions(plane) == [NEW] * count

    await plane.until(holds, 60.0)


def test_a_new_version_takes_the_old_one_s_place_instance_by_instance() -> None:
    async def main() -> None:
        async with control_plane(workers=4) as plane:
            await plane.register(spec(min_instances=2))
            await plane.until_serving(2)
            least = 2

            async def watch() -> None:
                nonlocal least
                while True:
                    least = min(least, len(await plane.serving()))
                    await asyncio.sleep(0.05)

            watching = asyncio.create_task(watch())
            await plane.register(spec(path="/new", min_instances=2))
            entry = await entry_of(plane, "m")
            assert (entry.version, entry.next) == ("v-m", spec(path="/new", min_instances=2))
            await until_replaced(plane, 2)
            watching.cancel()
            assert least == 2
            entry = await entry_of(plane, "m")
            assert (entry.version, entry.spec.path, entry.next) == (NEW, "/new", None)
            await asyncio.sleep(2.0)
            assert kept(plane) == [("m", NEW)]
            assert {one.rule for one in await plane.decisions() if one.action == "in"} == {"version"}

    virtual_time.run(main(), limit_seconds=200)


def test_a_request_is_answered_by_one_version() -> None:
    async def main() -> None:
        async with control_plane(workers=3) as plane:
            await plane.register(spec(max_instances=1))
            for index in range(40):
                await plane.gateway.submit(f"r-{index}", max_tokens=100)
                if index == 10:
                    await plane.register(spec(path="/new", max_instances=1))
                await asyncio.sleep(0.2)
            await until_replaced(plane, 1)
            await asyncio.sleep(25.0)
            assert set(plane.gateway.finished.values()) == {"length"}
            assert len(plane.gateway.finished) == 40
            assert all(len(seen) == 1 for seen in plane.gateway.versions.values())
            assert {version for seen in plane.gateway.versions.values() for version in seen} == {"v-m", NEW}

    virtual_time.run(main(), limit_seconds=200)


def test_what_lost_its_worker_goes_on_by_its_own_version_or_ends_with_an_error() -> None:
    async def main() -> None:
        async with control_plane(workers=2) as plane:
            await plane.gateway.submit("long", max_tokens=400)
            await asyncio.sleep(1.0)
            await plane.register(spec(path="/new"))
            await asyncio.sleep(2.0)
            assert await versions(plane) == [NEW]
            began = len(plane.gateway.tokens["long"])
            assert 0 < began < 400
            await plane.kill("worker-0")
            await asyncio.sleep(5.0)
            assert plane.gateway.finished["long"] == "error"
            assert "version of the model that began this request is gone" in str(plane.gateway.errors["long"])
            assert plane.gateway.versions["long"] == {"v-m"}

    virtual_time.run(main(), limit_seconds=200)


def test_edited_files_are_a_new_version_and_unedited_ones_are_none() -> None:
    async def main() -> None:
        async with control_plane(workers=2) as plane:
            await plane.register(spec())
            await asyncio.sleep(2.0)
            assert host(plane).reads == ["m"]
            host(plane).edited["/models/m"] = NEW
            await plane.register(spec())
            await until_replaced(plane, 1)

    virtual_time.run(main(), limit_seconds=200)


def test_a_limit_that_is_changed_leaves_all_else_as_it_was() -> None:
    async def main() -> None:
        async with control_plane(workers=2) as plane:
            await plane.register(spec(max_instances=2, layout="panels"))
            said = Register(spec=ModelSpec(name="m", path="", min_instances=0), named=["name", "min_instances"])
            entry = await plane.operator.call(REGISTER, said, timeout=5.0)
            known = entry.spec if entry.next is None else entry.next
            assert known == spec(min_instances=0, max_instances=2, layout="panels")

    virtual_time.run(main(), limit_seconds=200)


def test_without_a_spare_worker_an_instance_beyond_the_minimum_makes_room_and_the_last_one_stays() -> None:
    async def main() -> None:
        async with control_plane(workers=2) as plane:
            await plane.register(spec(min_instances=2))
            await plane.until_serving(2)
            await plane.register(spec(path="/new", min_instances=2))
            await asyncio.sleep(5.0)
            assert await versions(plane) == ["v-m", "v-m"]
            assert (await plane.decisions())[-1].rule == "capacity"
            await plane.register(spec(path="/new", min_instances=1))
            await until_replaced(plane, 1)

    virtual_time.run(main(), limit_seconds=200)


def test_a_registry_that_dies_while_a_version_is_read_leaves_it_to_its_successor() -> None:
    async def main() -> None:
        async with control_plane(workers=2) as plane:
            host(plane).read_seconds = 3.0
            await plane.register(spec(path="/new"))
            await asyncio.sleep(1.0)
            await plane.kill("registry-0")
            plane.restart("registry")
            await until_replaced(plane, 1)
            await asyncio.sleep(2.0)
            assert kept(plane) == [("m", NEW)]

    virtual_time.run(main(), limit_seconds=200)


def test_a_registry_that_dies_while_instances_are_replaced_leaves_that_to_its_successor() -> None:
    async def main() -> None:
        async with control_plane(workers=3) as plane:
            await plane.register(spec(min_instances=2))
            await plane.until_serving(2)
            await plane.register(spec(path="/new", min_instances=2))
            await asyncio.sleep(0.5)
            await plane.kill("registry-0")
            plane.restart("registry")
            await until_replaced(plane, 2)

    virtual_time.run(main(), limit_seconds=200)


def test_a_removed_model_takes_no_requests_drains_and_gives_its_memory_back() -> None:
    async def main() -> None:
        async with control_plane(workers=2) as plane:
            await plane.gateway.submit("before", max_tokens=100)
            await asyncio.sleep(0.5)
            assert (await plane.remove("m")).state == "removing"
            assert (await plane.remove("m")).state == "removing"
            await asyncio.sleep(0.6)
            with pytest.raises(Refusal, match="was removed") as refused:
                await plane.gateway.submit("after")
            assert refused.value.code == 404
            with pytest.raises(Refusal, match="being removed"):
                await plane.scale(1)
            await asyncio.sleep(8.0)
            assert plane.gateway.finished == {"before": "length"}
            snapshot = await plane.snapshot()
            assert (snapshot.models, [one.state for one in snapshot.workers]) == ([], ["spare", "spare"])
            assert kept(plane) == []
            assert len(await plane.records()) == 2
            with pytest.raises(Refusal, match="not registered"):
                await plane.remove("m")
            await plane.register(spec())
            await plane.until_serving(1)
            assert "host-0" in await copies(plane, "m")

    virtual_time.run(main(), limit_seconds=200)


def test_what_waits_for_a_removed_model_ends_with_an_error() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            await plane.register(spec("idle", min_instances=0))
            await asyncio.sleep(1.0)
            await plane.gateway.submit("waiting", model="idle")
            await plane.remove("idle")
            await asyncio.sleep(1.0)
            assert plane.gateway.finished == {"waiting": "error"}
            assert "was removed" in str(plane.gateway.errors["waiting"])

    virtual_time.run(main(), limit_seconds=200)


def test_a_registry_that_dies_while_a_model_is_removed_leaves_that_to_its_successor() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            await plane.remove("m")
            await asyncio.sleep(0.1)
            await plane.kill("registry-0")
            plane.restart("registry")
            await asyncio.sleep(12.0)
            assert (await plane.snapshot()).models == []
            assert kept(plane) == []
            assert "models.m" not in plane.broker.values

    virtual_time.run(main(), limit_seconds=200)
