"""Ways to other workers that are open before any plan needs them, so that its first byte waits for no handshake.

A worker that joins greets those that are there: both ends open a channel, the new worker ends it, and the link keeps
what it ran over. It does so in the background, one after the other, and with a bounded number.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog
import xxhash

from livescale.services.worker.instance.context import WorkerContext
from livescale.shared.bus.contract import Ack, BusError, Context, Endpoint, Refusal
from livescale.shared.links.contract import KeepingLink, Link, LinkError, Peer
from livescale.shared.messages.membership import Member
from livescale.shared.messages.registry import AskSnapshot
from livescale.shared.messages.transfers import Greet, Node
from livescale.shared.subjects import GREET, SNAPSHOT

MOST_GREETED = 32  # by one worker; each is a descriptor at both ends
CALL_SECONDS = 5.0
CHANNEL = 1 << 40  # above those of flows, hand-offs and KV

log = structlog.get_logger()


class PeerMesh:
    """Opens ways to peers after joining, and closes them when their lease ends. With a link that keeps nothing it does
    nothing."""

    def __init__(self, context: WorkerContext, link: Link, joined: Callable[[], Awaitable[int]]) -> None:
        """`link` is the worker's own, not counted as traffic. `joined` returns once the worker is a member."""
        self._context = context
        self._link = link
        self._joined = joined
        self._most = min(MOST_GREETED, link.most_kept) if isinstance(link, KeepingLink) else 0
        self._one_by_one = asyncio.Lock()
        self._open: dict[str, bytes] = {}  # addresses of workers to which a way is open, or was

    def endpoints(self) -> list[Endpoint]:
        """The calls of the bus that are answered here."""
        return [Endpoint(GREET, self.greeted, {"id": self._context.me})]

    async def run(self) -> None:
        """Greet those that are there as this worker joins."""
        if not self._most:
            return
        await self._joined()
        try:
            there = await self._context.bus.call(SNAPSHOT, AskSnapshot(), timeout=CALL_SECONDS)
        except BusError as error:
            log.info("peers_not_greeted", error=str(error))  # the first plan opens what it needs
            return
        for peer in choose_peers(self._context.me, there.members, self._most):
            if peer.id not in self._open:
                await self._greet(peer)

    async def greeted(self, command: Greet, context: Context) -> Ack:
        """Answer GREET: open a way to a worker that has joined. Raises Refusal 503 where it cannot be reached."""
        if self._most:
            try:
                await self._open_to(command.worker)
            except LinkError as error:
                raise Refusal(503, f"{command.worker.id} cannot be reached: {error}") from error
        return Ack()

    def lost(self, worker: str) -> None:
        """The lease of this worker has ended: close what is kept to it."""
        address = self._open.pop(worker, None)
        if address is not None and isinstance(self._link, KeepingLink):
            self._link.forget(address)

    async def _greet(self, peer: Node) -> None:
        """Have both ends open a way, the other one first: what only one of them has is of no use."""
        me = Node(id=self._context.me, place="worker", address=self._link.address)
        try:
            await self._context.bus.call(GREET, Greet(worker=me), timeout=2 * CALL_SECONDS, id=peer.id)
            channel = await self._open_to(peer)
            await channel.close()  # the other end learns of it
        except (BusError, LinkError) as error:
            log.info("peer_not_greeted", peer=peer.id, error=str(error))

    async def _open_to(self, peer: Node) -> Peer:
        async with self._one_by_one:
            channel = await self._link.connect(peer.address, timeout=CALL_SECONDS, channel=CHANNEL)
        self._open[peer.id] = peer.address
        return channel


def choose_peers(me: str, members: Iterable[Member], most: int) -> list[Node]:
    """Choose which workers to greet: all that live, or as many as are allowed. Each worker that joins then chooses
    other ones."""
    able = [one for one in members if one.service == "worker" and one.id != me and one.lease == "alive"]
    reached = [Node(id=one.id, place="worker", address=one.address) for one in able if one.address is not None]
    return sorted(reached, key=lambda one: xxhash.xxh3_64_intdigest(f"{me} {one.id}".encode()))[:most]
