"""What is started as a task of a worker ends with it, and nothing is begun once it is ending. What moves when a request
changes hands arrives whole, or the other end knows that it did not.
"""

import asyncio

import pytest

from livescale.services.worker.instance.context import (
    ACTIVATION,
    KV,
    PIECE_BYTES,
    SMALL_BYTES,
    Channel,
    WorkerContext,
    receive,
    send,
)
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.bus.contract import ServiceInfo
from livescale.shared.links.contract import Buffer, LinkError, Peer
from livescale.shared.messages.transfers import Node
from livescale.shared.process.run import World
from livescale.shared.process.telemetry import Telemetry
from livescale.shared.runtime.clock import CountedIds
from livescale.shared.simulation.local_bus import LocalBroker
from livescale.shared.simulation.virtual_time import run
from tests.shared.transfer.virtual_link import VirtualLink, here, new_mail
from tests.worker.live.engines import CLOCK, MODELLED


def context_of(tasks: asyncio.TaskGroup) -> WorkerContext:
    bus, telemetry = LocalBroker(clock=CLOCK).connect(), Telemetry("worker", "w")
    world = World(ServiceInfo("worker", "w", "under test"), "here", bus, CLOCK, CountedIds(), telemetry)
    return WorkerContext(world, VirtualLink(new_mail(), b"w"), tasks, MODELLED.make_runner(WorkerSettings()))


def test_work_that_is_started_runs_beside_and_is_awaited_at_the_end() -> None:
    done = []

    async def work() -> None:
        await asyncio.sleep(1.0)
        done.append("work")

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            context = context_of(tasks)
            started = context.start(work(), "some work")
            assert started is not None
            assert started.get_name() == "some work"
            assert (context.me, done) == ("w", [])
        assert done == ["work"]

    run(main())


def test_a_worker_that_is_ending_begins_nothing() -> None:
    began = []

    async def work() -> None:
        began.append("work")

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            context = context_of(tasks)

            async def late() -> None:
                try:
                    await asyncio.sleep(9.0)
                finally:
                    assert context.start(work(), "late") is None

            tasks.create_task(late())
            await asyncio.sleep(1.0)
            raise ValueError("the worker ends")

    with pytest.raises(ExceptionGroup) as ended:
        run(main())
    assert [str(error) for error in ended.value.exceptions] == ["the worker ends"]
    assert not began


def channels() -> tuple[Channel, Channel]:
    """The two ends of one hand-off. Within a running loop."""
    mail = new_mail()

    def end(own: bytes, other: bytes) -> Channel:
        return Channel(VirtualLink(mail, own), Node(id=other.decode(), place="worker", address=other), 7, b"secret")

    return end(b"target", b"source"), end(b"source", b"target")


@pytest.mark.parametrize("size_bytes", [0, 1, SMALL_BYTES + 1, PIECE_BYTES, PIECE_BYTES + 1])
def test_what_is_sent_arrives_whatever_its_size(size_bytes: int) -> None:
    data = memoryview(bytes(number % 251 for number in range(size_bytes)))

    async def main() -> None:
        target, source = channels()
        async with target.giving() as peer:
            await send(peer, ACTIVATION, data[: size_bytes // 2])
            await send(peer, KV, data)
        peer = await source.connect()
        assert await receive(peer, ACTIVATION, size_bytes // 2) == data[: size_bytes // 2]
        assert await receive(peer, KV, size_bytes) == data

    run(main())


class Damaging:
    """Sends the first byte of whatever it is given as another."""

    def __init__(self, peer: Peer) -> None:
        self.path, self.receive, self.close = peer.path, peer.receive, peer.close
        self._peer = peer

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        data = bytearray(here(buffer))
        data[0] ^= 1
        await self._peer.send(tag, Buffer(memoryview(data)), timeout=timeout)


def test_what_arrives_damaged_is_an_error() -> None:
    async def main() -> None:
        target, source = channels()
        await send(Damaging(await target.connect()), KV, memoryview(bytes(100)))
        with pytest.raises(LinkError, match="100 bytes arrived damaged"):
            await receive(await source.connect(), KV, 100)

    run(main())


class NotingPeer:
    """Notes that it was closed."""

    def __init__(self, peer: Peer, closed: list[bytes], address: bytes) -> None:
        self.path, self.receive, self.send = peer.path, peer.receive, peer.send
        self._closed, self._address = closed, address

    async def close(self) -> None:
        self._closed.append(self._address)


class NotingLink(VirtualLink):
    """Its peers note the addresses that they were opened to, once they are closed."""

    closed: list[bytes]

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> Peer:
        return NotingPeer(await super().connect(address, timeout=timeout), self.closed, address)


def test_a_sender_closes_a_channel_that_failed_and_leaves_one_that_is_done_to_the_other_end() -> None:
    async def main() -> None:
        link = NotingLink(new_mail(), b"target")
        link.closed = []
        done, failed = (Channel(link, Node(id="s", place="worker", address=at), 7, b"") for at in (b"done", b"failed"))
        async with done.giving():
            pass
        with pytest.raises(LinkError):
            async with failed.giving():
                raise LinkError("the other end is gone")
        assert link.closed == [b"failed"]

    run(main())
