"""Where copies of models are: on hosts, evenly, released and restored, and made anew when a machine is lost."""

import asyncio

import pytest
from structlog.testing import capture_logs

from livescale.services.registry.copy_fetcher import COMMAND_SECONDS
from livescale.shared.bus.contract import Ack, Context, Refusal
from livescale.shared.messages.registry import FetchModel
from livescale.shared.simulation import virtual_time
from livescale.shared.simulation.local_bus import LocalBus
from tests.control.control_plane import control_plane, spec
from tests.control.fake_host import FakeHost
from tests.control.fakes import BLOCK_BYTES, BLOCKS
from tests.control.queries import copies, host, kept

SIZE = BLOCKS * BLOCK_BYTES


async def has_blocks(host: FakeHost) -> bool:
    return bool(host.brought)


def test_models_are_spread_over_hosts_evenly_by_bytes() -> None:
    async def main() -> None:
        async with control_plane(register=False) as plane:
            plane.add_host(1)
            await asyncio.sleep(1.0)
            for name in ("a", "b", "c", "d"):
                await plane.register(spec(name, min_instances=0))
            await asyncio.sleep(2.0)
            assert [len(kept(plane, 0)), len(kept(plane, 1))] == [2, 2]
            assert {tuple(await copies(plane, name)) for name in ("a", "b", "c", "d")} == {("host-0",), ("host-1",)}

    virtual_time.run(main(), limit_seconds=100)


def test_a_host_that_joins_gets_its_share_from_the_others_memory_and_then_nothing_moves_any_more() -> None:
    async def main() -> None:
        async with control_plane(register=False) as plane:
            for name in ("a", "b", "c", "d"):
                await plane.register(spec(name, min_instances=0))
            await asyncio.sleep(2.0)
            second = plane.add_host(1)
            await asyncio.sleep(6.0)
            assert [len(kept(plane, 0)), len(kept(plane, 1))] == [2, 2]
            assert (len(second.fetched), second.reads) == (2, [])
            moved = len(host(plane).released)
            await asyncio.sleep(10.0)
            assert (len(host(plane).released), len(second.fetched)) == (moved, 2)

    virtual_time.run(main(), limit_seconds=100)


def test_a_lost_host_s_models_come_from_those_who_have_them_else_from_disk_and_are_named_meanwhile() -> None:
    async def main() -> None:
        async with control_plane(register=False) as plane:
            await plane.register(spec("served"))
            await plane.register(spec("idle", min_instances=0))
            await plane.until_serving(1, "served")
            await plane.kill("host-0")
            await asyncio.sleep(2.8)  # it is declared dead after 2.5 s of silence
            other = plane.add_host(1)
            other.read_seconds = 2.0
            assert await copies(plane, "idle") == []
            assert [entry.state for entry in (await plane.snapshot()).models] == ["ready", "ready"]
            await asyncio.sleep(2.0 + 5.0 - 2.8)  # its size by the disk's rate, and 5 s
            assert (other.reads, other.fetched) == (["idle"], ["served"])
            assert await copies(plane, "idle") == ["host-1"]
            assert "host-1" in await copies(plane, "served")

    virtual_time.run(main(), limit_seconds=100)


def test_a_copy_whose_source_dies_on_the_way_goes_on_from_who_else_has_it() -> None:
    async def main() -> None:
        async with control_plane(workers=2) as plane:
            await plane.register(spec(min_instances=2))
            await plane.until_serving(2)
            await plane.kill("host-0")
            other = plane.add_host(1)
            await plane.until(lambda: has_blocks(other))
            [(source, _), *_] = other.brought
            await plane.kill(source)
            await asyncio.sleep(2.0)
            assert [index for _, index in other.brought] == list(range(BLOCKS))
            assert {sender for sender, _ in other.brought} == {"worker-0", "worker-1"}
            assert other.reads == []
            assert "host-1" in await copies(plane, "m")

    virtual_time.run(main(), limit_seconds=100)


def test_a_host_whose_answer_is_lost_is_told_of_the_copy_again_and_gets_it_over_the_link() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            await plane.kill("host-0")
            other, plans = plane.add_host(1), list[str]()
            obey = other.fetch

            async def obey_late(fetch: FetchModel, context: Context) -> Ack:
                plans.append(fetch.plan_id)
                answer = await obey(fetch, context)
                await asyncio.sleep(COMMAND_SECONDS if len(plans) == 1 else 0.0)
                return answer

            other.fetch = obey_late  # type: ignore[method-assign]
            await asyncio.sleep(COMMAND_SECONDS + 3.0)
            assert (len(plans), len(set(plans))) == (2, 1)
            assert {sender for sender, _ in other.brought} == {"worker-0"}
            assert "host-1" in await copies(plane, "m")

    virtual_time.run(main(), limit_seconds=100)


def test_a_copy_whose_registry_is_restarted_while_its_source_dies_is_made_all_the_same() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            await plane.kill("host-0")
            other = plane.add_host(1)
            await plane.until(lambda: has_blocks(other))
            await plane.kill("registry-0")
            await plane.kill("worker-0")
            plane.restart("registry")
            await asyncio.sleep(15.0)
            assert [index for _, index in other.brought] == list(range(BLOCKS))
            assert await copies(plane, "m") == ["host-1"]

    virtual_time.run(main(), limit_seconds=100)


def test_when_the_only_source_of_a_copy_dies_the_rest_is_read_from_disk() -> None:
    async def main() -> None:
        async with control_plane(workers=1) as plane:
            await plane.kill("host-0")
            other = plane.add_host(1)
            await plane.until(lambda: has_blocks(other))
            await plane.kill("worker-0")
            await asyncio.sleep(4.0)
            assert [index for _, index in other.brought] == list(range(BLOCKS))
            assert [sender for sender, _ in other.brought][:: BLOCKS - 1] == ["worker-0", "disk"]
            assert other.reads == []
            assert await copies(plane, "m") == ["host-1"]

    virtual_time.run(main(), limit_seconds=100)


def test_where_memory_is_short_a_served_model_s_copy_gives_way_and_comes_back_before_its_last_instance_goes() -> None:
    async def main() -> None:
        async with control_plane(register=False) as plane:
            host(plane).limit_bytes = SIZE
            await asyncio.sleep(1.0)
            await plane.register(spec("first", min_instances=0))
            await asyncio.sleep(1.0)
            with pytest.raises(Refusal, match=r"cache_bytes: model 'second' needs 3\.8 MiB") as refused:
                await plane.register(spec("second", min_instances=0))
            assert refused.value.code == 409
            await plane.scale(1, "first")
            await plane.until_serving(1, "first")
            await plane.register(spec("second", min_instances=0))
            await asyncio.sleep(2.0)
            assert kept(plane) == [("second", "v-second")]
            assert await copies(plane, "first") == ["worker-0"]
            with pytest.raises(Refusal, match=r"'first' needs 3\.8 MiB of a host cache"):
                await plane.scale(0, "first")
            await plane.scale(1, "second")
            await plane.until_serving(1, "second")
            await plane.until_serving(0, "first")
            assert kept(plane) == [("first", "v-first")]
            assert sorted(await copies(plane, "second")) == ["worker-1"]

    virtual_time.run(main(), limit_seconds=100)


def test_a_registry_that_is_restarted_knows_released_copies_and_orders_nothing() -> None:
    async def main() -> None:
        async with control_plane(register=False) as plane:
            host(plane).limit_bytes = SIZE
            await asyncio.sleep(1.0)
            await plane.register(spec("first"))
            await plane.until_serving(1, "first")
            await plane.register(spec("second", min_instances=0))
            await asyncio.sleep(2.0)
            reads, released = list(host(plane).reads), list(host(plane).released)
            await plane.kill("registry-0")
            plane.restart("registry")
            await asyncio.sleep(5.0)
            assert (host(plane).reads, host(plane).released) == (reads, released)
            assert await copies(plane, "first") == ["worker-0"]
            assert await copies(plane, "second") == ["host-0"]
            await plane.scale(2, "first")
            await plane.until_serving(2, "first")

    virtual_time.run(main(), limit_seconds=100)


def test_a_host_that_was_cut_off_when_it_was_asked_to_read_is_asked_again_once_it_is_heard() -> None:
    async def main() -> None:
        async with control_plane(register=False) as plane:
            await plane.register(spec("m", min_instances=0))
            await asyncio.sleep(2.0)
            other = plane.add_host(1)
            await asyncio.sleep(1.0)
            await plane.kill("host-0")
            await asyncio.sleep(1.8)
            assert isinstance(other.bus, LocalBus)
            other.bus.hold()  # while it is taken for alive, and the only one left
            await asyncio.sleep(1.9)
            other.bus.forget()
            other.bus.release()
            assert other.reads == []
            await asyncio.sleep(2.0)
            assert other.reads == ["m"]
            assert await copies(plane, "m") == ["host-1"]

    virtual_time.run(main(), limit_seconds=100)


def test_a_call_that_was_lost_is_no_failure_of_the_host_that_was_asked_again_and_reads() -> None:
    async def main() -> None:
        async with control_plane(register=False) as plane:
            await plane.register(spec("m", min_instances=0))
            await asyncio.sleep(2.0)
            other = plane.add_host(1)
            other.read_seconds = 90.0  # longer than the lost call waits for its answer
            await asyncio.sleep(1.0)
            await plane.kill("host-0")
            await asyncio.sleep(1.8)
            assert isinstance(other.bus, LocalBus)
            other.bus.hold()
            await asyncio.sleep(1.9)
            other.bus.forget()
            other.bus.release()
            await asyncio.sleep(70.0)
            assert other.reads == ["m"]
            assert not [one for one in logs if one["event"] == "model_not_read"]

    with capture_logs() as logs:
        virtual_time.run(main(), limit_seconds=200)
