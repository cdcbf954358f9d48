"""Workers that join greet those that are there: ways between them are open before a plan needs any. Over real UCX."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.mesh import CHANNEL, MOST_GREETED, PeerMesh, choose_peers
from livescale.shared.bus.contract import Context, Endpoint, Refusal, ServiceInfo
from livescale.shared.links.contract import Link
from livescale.shared.links.open import open_link
from livescale.shared.links.ucx import UcxLink
from livescale.shared.messages.membership import LeaseState, Member
from livescale.shared.messages.registry import AskSnapshot, Snapshot
from livescale.shared.messages.transfers import Greet, Node
from livescale.shared.runtime.settings import LinkSettings
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.subjects import GREET, SNAPSHOT
from tests.clocks import LoopClock


def member(id: str, address: bytes | None, lease: LeaseState = "alive") -> Member:
    return Member(service="worker", id=id, pid=1, host="h", epoch=1, lease=lease, address=address)


class Pool:
    """A registry, and workers of which nothing runs but what greets others."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self.members: list[Member] = []
        self.links: dict[str, Link] = {}
        self.meshes: dict[str, PeerMesh] = {}

    async def snapshot(self, ask: AskSnapshot, context: Context) -> Snapshot:
        return Snapshot(members=self.members)

    async def join(self, id: str, link: Link) -> None:
        """A worker joins; returns once it has greeted whom it greets."""
        bus = self.broker.connect()
        context = SimpleNamespace(bus=bus, me=id)

        async def joined() -> int:
            return 1

        mesh = self.meshes[id] = PeerMesh(cast("WorkerContext", context), link, joined)
        self.links[id] = link
        await bus.serve(ServiceInfo("worker", id, "greets"), mesh.endpoints())
        self.members.append(member(id, link.address))
        await mesh.run()

    def kept(self, id: str) -> int:
        link = self.links[id]
        return len(link._kept) if isinstance(link, UcxLink) else 0


@asynccontextmanager
async def pool_of(*ids: str, transport: str = "ucx") -> AsyncIterator[Pool]:
    async with AsyncExitStack() as undo:
        pool = Pool(LocalBroker(LoopClock(epoch=1_000_000.0)))
        await pool.broker.connect().serve(
            ServiceInfo("registry", "registry-0", "members"), [Endpoint(SNAPSHOT, pool.snapshot)]
        )
        for id in ids:
            link = await open_link(LinkSettings(transport=transport, bind="127.0.0.1"))  # type: ignore[arg-type]
            undo.push_async_callback(link.close)
            await pool.join(id, link)
        yield pool


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - UCX has something to do
            await asyncio.sleep(0.001)


async def test_each_two_workers_have_a_way_that_the_first_channel_takes() -> None:
    async with pool_of("a", "b", "c") as pool:
        await until(lambda: [pool.kept(id) for id in "abc"] == [2, 2, 2])
        a, b = pool.links["a"], pool.links["b"]
        ends = await asyncio.gather(
            a.connect(b.address, timeout=60, channel=7), b.connect(a.address, timeout=60, channel=7)
        )
        assert [pool.kept(id) for id in "abc"] == [1, 1, 2]
        assert all(end.is_kept for end in ends)  # type: ignore[attr-defined]
        for end in ends:
            await end.close()
        await until(lambda: [pool.kept(id) for id in "abc"] == [2, 2, 2])


async def test_two_that_greet_each_other_at_once_have_one_way() -> None:
    async with pool_of() as pool:
        links = {id: await open_link(LinkSettings(transport="ucx", bind="127.0.0.1")) for id in "ab"}
        pool.members = [member(id, link.address) for id, link in links.items()]
        await asyncio.gather(*(pool.join(id, link) for id, link in links.items()))
        await until(lambda: [pool.kept(id) for id in "ab"] == [1, 1])
        for link in links.values():
            await link.close()


async def test_what_is_kept_to_a_worker_goes_with_its_lease() -> None:
    async with pool_of("a", "b", "c") as pool:
        await until(lambda: [pool.kept(id) for id in "abc"] == [2, 2, 2])
        pool.meshes["a"].lost("b")
        pool.meshes["a"].lost("never heard of")
        assert pool.kept("a") == 1
        await until(lambda: pool.kept("b") == 1)  # it is told, and keeps no half
        assert pool.kept("c") == 2


async def test_a_peer_that_is_gone_or_does_not_answer_delays_nobody_else() -> None:
    async with pool_of("a") as pool:
        pool.members.append(member("gone", pool.links["a"].address))  # and nothing answers for it
        link = await open_link(LinkSettings(transport="ucx", bind="127.0.0.1"))
        await pool.join("b", link)
        await until(lambda: [pool.kept("a"), pool.kept("b")] == [1, 1])
        await link.close()


async def test_who_cannot_be_reached_is_refused() -> None:
    async with pool_of("a") as pool:
        bus, greet = pool.broker.connect(), Greet(worker=Node(id="b", place="worker", address=b"no address"))
        with pytest.raises(Refusal, match="b cannot be reached") as refused:
            await bus.call(GREET, greet, timeout=10, id="a")
        assert refused.value.code == 503


async def test_links_that_keep_nothing_open_nothing() -> None:
    async with pool_of("a", "b", transport="socket") as pool:
        for id in "ab":
            peer = pool.members["ba".index(id)]
            await pool.broker.connect().call(
                GREET, Greet(worker=Node(id=peer.id, place="worker", address=b"x")), timeout=60, id=id
            )
        assert pool.meshes["a"]._open == {}


def test_only_workers_that_live_are_greeted_and_each_greets_others_of_many() -> None:
    able = [member(f"w-{number}", b"there") for number in range(3 * MOST_GREETED)]
    others = [member("dead", b"there", "dead"), member("shy", None), member("w-me", b"there")]
    host = Member(service="host", id="host", pid=1, host="h", epoch=1, lease="alive", address=b"there")
    found = {me: choose_peers(me, [*able, *others, host], MOST_GREETED) for me in ("w-me", "w-you")}
    assert all(len(chosen) == MOST_GREETED for chosen in found.values())
    assert {one.id for one in found["w-me"]} <= {one.id for one in able}
    assert found["w-me"] != found["w-you"]
    assert len(choose_peers("w-0", able[:5], MOST_GREETED)) == 4


def test_the_channel_is_no_other_ones() -> None:
    assert 1 << 27 < CHANNEL < 1 << 64
