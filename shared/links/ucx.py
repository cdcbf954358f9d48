"""`UcxLink`: bulk bytes over UCX, by CMA on one host, by tcp or RDMA between hosts.

UCX does not authenticate peers. Every message is matched by its tag, a hash under the channel's secret. A process that
does not know the secret matches no receive and is sent nothing.
"""

import asyncio
import hmac
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import xxhash
from ucxx._lib.arr import Array
from ucxx._lib.libucxx import UCXEndpoint, UCXRequest
from ucxx.exceptions import UCXError
from ucxx.types import Tag

from livescale.shared.links.contract import Buffer, LinkError
from livescale.shared.links.link_path import LinkPath, MemoryKind, choose_path
from livescale.shared.links.tickets import hash_key, message_tag
from livescale.shared.links.ucx_engine import UcxEngine, endpoint_transports, link_address, memory_at, worker_address

CONTROL = Tag(0x6C697665_7363616C)
# What a peer says on CONTROL, the hash of its address, on which channel; then the number of its endpoint, or its proof.
WORD = struct.Struct("8sQQQ")
HELLO, GOODBYE = b"hello   ", b"goodbye "
MOST_NUMBERS = 1024  # only for channels that were greeted, as any process can say hello
SETTLE_SECONDS = 5.0
CONFIRM_SECONDS = 0.5
GONE = "the peer closed the connection"


class UcxPeer:
    """An endpoint to one process.

    UCX matches tags for a worker; `_wire` makes them differ by peer, channel and size.
    """

    def __init__(
        self,
        engine: UcxEngine,
        address: bytes,
        memory: MemoryKind,
        channel: int,
        secret: bytes,
        on_lost: Callable[["UcxPeer", UCXEndpoint], object],
    ) -> None:
        self._engine = engine
        self._memory = memory
        self._transports = frozenset[str]()
        self._on_lost = on_lost
        self._channel = channel
        self._key = hash_key(secret)
        self._mine = xxhash.xxh3_64_intdigest(engine.address)
        self.theirs = xxhash.xxh3_64_intdigest(address)
        self._lost: str | None = None
        self._greeted = False
        self._left = False
        self._sending = 0
        self._requests = set[UCXRequest]()
        self.under_way = 0
        self._endpoint: Any = engine.endpoint(address)
        self.number = engine.made[address]
        self._endpoint.set_close_callback(asyncio.get_running_loop().call_soon, (self.lose, "the peer is gone"))

    async def greet(self, timeout: float) -> None:
        """Connect: the first message sets the transports up, or shows that the peer is not there."""
        if not self._greeted:
            self._check("connect")
            hello = WORD.pack(HELLO, self._mine, self._channel, self.number)
            await self._run(*self._say(hello), "connect", timeout)
            self._greeted = True
            if self._lost is None:
                self._transports = endpoint_transports(self._endpoint.handle)

    @property
    def path(self) -> LinkPath:
        engine = self._engine
        return choose_path(self._transports, engine.memory, self._memory, gpudirect=engine.gpudirect)

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        what = f"send {tag:#x}"
        self._check(what)
        memory = Array(buffer.view)
        request = self._endpoint.tag_send(memory, self._wire(tag, buffer, self._mine))
        self._sending += 1
        try:
            await self._run(request, memory, what, timeout)
        finally:
            self._sending -= 1
            if self._left and not self._sending:
                self.lose(GONE)

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        what = f"receive {tag:#x}"
        self._check(what)
        memory = Array(buffer.view)
        # A receive posted on the worker would never end when the peer dies; one on the endpoint does.
        request = self._endpoint.tag_recv(memory, self._wire(tag, buffer, self.theirs))
        await self._run(request, memory, what, timeout)

    async def close(self) -> None:
        self._leave("closed")

    def _check(self, what: str) -> None:
        if self._lost is not None or self._left:
            raise LinkError(f"{what}: {self._lost or GONE}")

    async def _run(self, request: UCXRequest, memory: Array, what: str, timeout: float) -> None:
        done = self._engine.watch(request, memory)
        self._requests.add(request)
        # A timer alone: `asyncio.timeout` and `asyncio.wait` cost more than all else that is done for a chunk.
        timer = asyncio.get_running_loop().call_later(timeout, _expire, done)
        self.under_way += 1
        try:
            error = await done
        except TimeoutError:
            error = await self._abandon(request, memory, f"{what} took more than {timeout:g} s")
        except asyncio.CancelledError:
            await self._abandon(request, memory, f"{what} was cancelled")
            raise
        finally:
            timer.cancel()
            self._requests.discard(request)
            self.under_way -= 1
        if error is not None:
            raise LinkError(f"{what}: {self._lost or error}")

    async def _abandon(self, request: UCXRequest, memory: Array, reason: str) -> str | None:
        """Close the endpoint, and wait until nothing writes into the buffer. Returns what became of the request."""
        is_stuck = self.is_stuck
        self._leave(reason)
        if is_stuck:
            return reason  # the engine keeps the buffer, from which a send only reads
        done = self._engine.watch(request, memory)
        await asyncio.wait((done,), timeout=SETTLE_SECONDS)
        return done.result() if done.done() else "the transport did not let go of the buffer"

    def _leave(self, reason: str) -> None:
        """Close this end and say goodbye: UCX tells the other end when a process dies, but not of a closed endpoint."""
        if self._lost is None:
            request, memory = self._say(self._goodbye(self._mine))
            self._engine.watch(request, memory)
            self._requests.add(request)
            self._engine.push(request)
            self.lose(reason)

    @property
    def is_stuck(self) -> bool:
        """Whether sends alone are under way, and TCP cannot get rid of them: the network may be cut.

        It is not where the other end has said goodbye.
        """
        return self.path.name == "tcp" and not self._left and 0 < self.under_way == self._sending

    @property
    def unfinished(self) -> list[UCXRequest]:
        """What UCX has not completed, the goodbye included."""
        return [request for request in self._requests if not request.completed]

    def hear_goodbye(self) -> None:
        """Note that the other end has closed. What it took is confirmed in a moment, so sends under way may end first:
        closing this endpoint before might end another channel.
        """
        if self._sending < self.under_way or not self._sending:
            self.lose(GONE)
        elif not self._left:
            self._left = True
            asyncio.get_running_loop().call_later(CONFIRM_SECONDS, self.lose, GONE)

    def lose(self, reason: str) -> None:
        """End every operation under way with `reason`. Idempotent."""
        if self._lost is not None:
            return
        self._lost = reason
        endpoint, self._endpoint = self._endpoint, None
        endpoint.remove_close_callback()
        self._on_lost(self, endpoint)

    def _say(self, word: bytes) -> tuple[UCXRequest, Array]:
        memory = Array(memoryview(word))
        return self._endpoint.tag_send(memory, CONTROL), memory

    def says(self, word: bytes) -> bool:
        """Whether a goodbye is that of this peer on this channel."""
        return hmac.compare_digest(word, self._goodbye(self.theirs))

    def _goodbye(self, sender: int) -> bytes:
        proof = message_tag(self._key, self._channel, sender, int.from_bytes(GOODBYE), WORD.size)
        return WORD.pack(GOODBYE, sender, self._channel, proof)

    def _wire(self, tag: int, buffer: Buffer, sender: int) -> Tag:
        """The tag that UCX sees.

        Without the sender in it peers would mix; without the size a short message would pass.
        """
        return Tag(message_tag(self._key, self._channel, sender, tag, buffer.size_bytes))


def _expire(done: asyncio.Future[str | None]) -> None:
    if not done.done():
        done.set_exception(TimeoutError())


class UcxLink:
    """A link over UCX. Make it by `UcxLink.open` inside a running event loop."""

    def __init__(self, engine: UcxEngine) -> None:
        self._engine = engine
        self._peers: dict[tuple[bytes, int], UcxPeer] = {}
        self._spent: dict[bytes, list[UCXEndpoint]] = {}  # of channels that ended, by address
        self._numbers: dict[tuple[int, int], int] = {}  # of the other ends' endpoints, by process and channel
        self._hearing = asyncio.create_task(self._hear())
        self._closed = False

    @classmethod
    async def open(cls, bind: str, memory: str = "host") -> "UcxLink":
        """Start UCX on the network device with the address `bind`, for parameters in `memory`: host, pinned or cuda:N.

        Raises LinkError where UCX cannot start or reach that memory, or no network device has that address.
        """
        try:
            return cls(UcxEngine(bind, memory))
        except UCXError as error:
            raise LinkError(f"UCX does not start: {error}") from error

    @property
    def address(self) -> bytes:
        return link_address(self._engine.address, self._engine.memory)

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> UcxPeer:
        if self._closed:
            raise LinkError("connect: this link is closed")
        peer = self._peers.get((address, channel))
        if peer is None:
            peer = self._peers[address, channel] = self._new_peer(address, channel, secret)
        await peer.greet(timeout)
        return peer

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for peer in list(self._peers.values()):
            await peer.close()
        self._hearing.cancel()
        await asyncio.wait((self._hearing,))
        self._engine.close()

    def _new_peer(self, address: bytes, channel: int, secret: bytes) -> UcxPeer:
        memory, raw = memory_at(address), worker_address(address)
        try:
            return UcxPeer(self._engine, raw, memory, channel, secret, partial(self._lost, address, channel))
        except UCXError as error:
            raise LinkError(f"connect: {error}") from error

    def _lost(self, address: bytes, channel: int, peer: UcxPeer, endpoint: UCXEndpoint) -> None:
        """Close the endpoint, or leave that to the last channel between these two processes.

        UCX pairs their endpoints in the order in which each side made them. Where both opened channels in different
        orders, an endpoint that is closed here may be another channel's there. What is under way ends at once even so.
        """
        self._peers.pop((address, channel), None)
        paired = self._numbers.pop((peer.theirs, channel), None) == peer.number
        if peer.is_stuck:
            self._engine.close_later(endpoint, peer.unfinished)
        elif paired or peer.under_way:
            self._engine.close_endpoint(endpoint)
        else:
            self._spent.setdefault(address, []).append(endpoint)
        if not any(other == address for other, _ in self._peers):
            for one in self._spent.pop(address, []):
                self._engine.close_endpoint(one)

    async def _hear(self) -> None:
        memory = bytearray(WORD.size)
        view = Array(memoryview(memory))
        while True:
            error = await self._engine.watch(self._engine.worker.tag_recv(view, CONTROL), view)
            if error is None:
                self._heard(bytes(memory))
            memory[:] = bytes(WORD.size)  # a shorter message must not pass for the one before

    def _heard(self, word: bytes) -> None:
        said, sender, channel, number = WORD.unpack(word)
        if said == HELLO:
            self._numbers[sender, channel] = number
            if len(self._numbers) > MOST_NUMBERS:
                self._numbers.pop(next(iter(self._numbers)))
        for peer in [peer for peer in self._peers.values() if peer.says(word)]:
            peer.hear_goodbye()
