"""Where a worker is, by what its parts compute and reach others, and the channels on which requests change hands.

What moves on a channel goes under the tags and within the time that are fixed here, and is checked.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from livescale.services.worker.engine.contract import Runner
from livescale.services.worker.instance.spans import WorkerSpans
from livescale.shared.bus.contract import Bus
from livescale.shared.links.contract import Buffer, Link, LinkError, Peer, View, checksum
from livescale.shared.messages.requests import Submit, arrived, leaving
from livescale.shared.messages.transfers import Node
from livescale.shared.process.run import World
from livescale.shared.runtime.clock import Clock
from livescale.shared.transfer.chunks import TICKETS, first_ticket

CONNECT_SECONDS = 5.0
PIECE_BYTES = 4 << 20
PIECE_SECONDS = 10.0  # within which a piece moves, or the hand-off is given up
# Channels of hand-offs are numbered above those of flows, which are tickets.
FIRST_CHANNEL = 1 << 24
ACTIVATION, KV = 0, 1  # what a piece belongs to, in its tag
TAG_BITS = 32
DIGEST_NUMBER = (1 << TAG_BITS) - 1  # in place of a piece's
DIGEST_BYTES = 8
SMALL_BYTES = 1 << 20


@dataclass(frozen=True)
class Channel:
    """A way to the other end of one hand-off, and the secret that only the two ends know.

    The source's ticket names the hand-off.
    """

    link: Link
    other: Node
    ticket: int
    secret: bytes

    async def connect(self) -> Peer:
        """Open the channel and return its end here. Raises LinkError."""
        return await self.link.connect(
            self.other.address, timeout=CONNECT_SECONDS, channel=FIRST_CHANNEL + self.ticket, secret=self.secret
        )

    @asynccontextmanager
    async def giving(self) -> AsyncIterator[Peer]:
        """Open the channel to send. The other end closes it, as it knows when it has everything. Raises LinkError.

        Where something fails here it is closed at once, from which the other end learns that nothing more will come.
        """
        async with AsyncExitStack() as undo:
            peer = await self.connect()
            undo.push_async_callback(peer.close)
            yield peer
            undo.pop_all()


@dataclass(frozen=True)
class WorkerContext:
    """What every part of a worker that talks to other workers needs, whatever model is served.

    `link` counts its bytes as traffic of serving, tasks of `tasks` end with the worker, and `runner` is its engine.
    """

    world: World
    link: Link
    tasks: asyncio.TaskGroup
    runner: Runner

    @property
    def me(self) -> str:
        """This worker's id, by which other workers know it."""
        return self.world.info.id

    @property
    def bus(self) -> Bus:
        return self.world.bus

    @property
    def spans(self) -> WorkerSpans:
        return WorkerSpans.of(self.world.telemetry, self.world.clock)

    @property
    def clock(self) -> Clock:
        return self.world.clock

    def node(self, link: Link | None = None) -> Node:
        """This worker as others reach it, by `link` where that is another one than the context's."""
        return Node(id=self.me, place="worker", address=(link or self.link).address)

    def channel(self, other: Node, ticket: int, secret: bytes) -> Channel:
        """The way to the other end of one hand-off; its bytes count as traffic of serving."""
        return Channel(self.link, other, ticket, secret)

    def arrived(self, request: Submit) -> Submit:
        """Return a request that came just now, with its times on this machine's clock; see `requests.arrived`."""
        return arrived(request, self.clock.wall())

    def leaving(self, request: Submit) -> Submit:
        """Return a request as another machine is to get it, by its own clock; see `requests.leaving`."""
        return leaving(request, self.clock.wall())

    def start(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None] | None:
        """Run `work` as a task of the worker. Returns None, with nothing begun, where the worker is ending."""
        try:
            return self.tasks.create_task(work, name=name)
        except RuntimeError:
            work.close()
            return None


class HandOffTickets:
    """The tickets by which a worker names its hand-offs, and which begin again. Where they go on after those of an
    earlier process they are counted from the time `wall` on."""

    def __init__(self, wall: float = 0.0) -> None:
        self._next = first_ticket(wall) % TICKETS

    def take(self, count: int = 1) -> int:
        """Reserve so many tickets in a row, and return the first."""
        first = self._next if self._next + count <= TICKETS else 0
        self._next = first + count
        return first


async def send(peer: Peer, part: int, data: View) -> None:
    """Send all of `data`, then its checksum. Raises LinkError."""
    for tag, buffer in _pieces(part, data):
        await peer.send(tag, buffer, timeout=PIECE_SECONDS)
    await peer.send(_digest_tag(part), Buffer(await _digest(data)), timeout=PIECE_SECONDS)


async def receive(peer: Peer, part: int, size_bytes: int) -> memoryview:
    """Receive so many bytes. Raises LinkError, also where something else arrived than was sent."""
    data = memoryview(bytearray(size_bytes))
    await receive_into(peer, part, data)
    return data


async def receive_into(peer: Peer, part: int, data: View) -> None:
    """Receive as many bytes as `data` has, into it. Raises LinkError as `receive` does."""
    sent = memoryview(bytearray(DIGEST_BYTES))
    for tag, buffer in _pieces(part, data):
        await peer.receive(tag, buffer, timeout=PIECE_SECONDS)
    await peer.receive(_digest_tag(part), Buffer(sent), timeout=PIECE_SECONDS)
    if sent != await _digest(data):
        raise LinkError(f"{data.nbytes} bytes arrived damaged, their checksum is another")


def _pieces(part: int, data: View) -> Iterator[tuple[int, Buffer]]:
    for number, start in enumerate(range(0, data.nbytes, PIECE_BYTES)):
        yield part << TAG_BITS | number, Buffer(data[start : start + PIECE_BYTES])


def _digest_tag(part: int) -> int:
    return part << TAG_BITS | DIGEST_NUMBER


async def _digest(data: View) -> memoryview:
    # A thread takes longer to begin, beside a step that is computed, than as much takes to be read.
    digest = checksum(data) if data.nbytes <= SMALL_BYTES else await asyncio.to_thread(checksum, data)
    return memoryview(bytearray(digest.to_bytes(DIGEST_BYTES, "big")))
