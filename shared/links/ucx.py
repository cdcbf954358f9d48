"""`UcxLink`: bulk bytes over UCX; by CMA on one host, by tcp or RDMA between hosts.

UCX itself asks nobody who he is. What keeps strangers out is that every message is matched by a tag, and a tag is a
hash under the channel's secret: what does not know it meets no receive, and gets nothing sent.
"""

import asyncio
import hmac
import struct
from collections.abc import Callable
from typing import Any

import xxhash
from ucxx._lib.arr import Array
from ucxx._lib.libucxx import UCXRequest
from ucxx.exceptions import UCXError
from ucxx.types import Tag

from shared.links.contract import Buffer, LinkError
from shared.links.tickets import message_tag
from shared.links.ucx_engine import UcxEngine

SCHEME = b"ucx:"
CONTROL = Tag(0x6C697665_7363616C)
WORD = struct.Struct("8sQQQ")  # what a peer says on CONTROL, the hash of its address, on which channel, and its proof
HELLO, GOODBYE = b"hello   ", b"goodbye "
SETTLE_SECONDS = 5.0


class UcxPeer:
    """An endpoint to one process. UCX matches tags per worker; `_wire` makes them per peer, channel and size."""

    def __init__(
        self, engine: UcxEngine, address: bytes, channel: int, secret: bytes, on_lost: Callable[[], object]
    ) -> None:
        self._engine = engine
        self._on_lost = on_lost
        self._channel = channel
        self._secret = secret
        self._mine = xxhash.xxh3_64_intdigest(engine.address)
        self._theirs = xxhash.xxh3_64_intdigest(address)
        self._lost: str | None = None
        self._greeted = False
        self._endpoint: Any = engine.endpoint(address)
        self._endpoint.set_close_callback(asyncio.get_running_loop().call_soon, (self.lose, "the peer is gone"))

    async def greet(self, timeout: float) -> None:
        """Connect for good: the first message brings the transports up, or shows that nobody is there."""
        if not self._greeted:
            await self._run(lambda: self._say(HELLO), "connect", timeout)
            self._greeted = True

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        memory, wire = Array(buffer.view), self._wire(tag, buffer, self._mine)
        await self._run(lambda: (self._endpoint.tag_send(memory, wire), memory), f"send {tag:#x}", timeout)

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        memory, wire = Array(buffer.view), self._wire(tag, buffer, self._theirs)
        # A receive posted on the worker would never end when the peer dies; one on the endpoint does.
        await self._run(lambda: (self._endpoint.tag_recv(memory, wire), memory), f"receive {tag:#x}", timeout)

    async def close(self) -> None:
        self._leave("closed")

    async def _run(self, submit: Callable[[], tuple[UCXRequest, Array]], what: str, timeout: float) -> None:
        if self._lost is not None:
            raise LinkError(f"{what}: {self._lost}")
        done = self._engine.watch(*submit())
        try:
            await asyncio.wait((done,), timeout=timeout)
            if not done.done():
                await self._abandon(done, f"{what} took more than {timeout:g} s")
        except asyncio.CancelledError:
            await self._abandon(done, f"{what} was cancelled")
            raise
        error = done.result()
        if error is not None:
            raise LinkError(f"{what}: {self._lost or error}")

    async def _abandon(self, done: asyncio.Future[str | None], reason: str) -> None:
        """Close the endpoint, and see to it that nothing writes into the buffer any more."""
        self._leave(reason)
        await asyncio.wait((done,), timeout=SETTLE_SECONDS)
        if not done.done():
            done.set_result("the transport did not let go of the buffer")

    def _leave(self, reason: str) -> None:
        """Close our end and say so: UCX tells the other end of a death, not of a closed endpoint."""
        if self._lost is None:
            request, memory = self._say(GOODBYE)
            self._engine.watch(request, memory)
            self._engine.push(request)
            self.lose(reason)

    def lose(self, reason: str) -> None:
        """End every operation under way with `reason`. Idempotent."""
        if self._lost is not None:
            return
        self._lost = reason
        self._endpoint.remove_close_callback()
        self._endpoint.close_blocking(period=10**9, max_attempts=1)
        self._endpoint = None
        self._engine.reap()
        self._on_lost()

    def _say(self, word: bytes) -> tuple[UCXRequest, Array]:
        memory = Array(memoryview(self._word(word, self._mine)))
        return self._endpoint.tag_send(memory, CONTROL), memory

    def says(self, word: bytes) -> bool:
        """Whether our peer, and nobody else, said goodbye."""
        return hmac.compare_digest(word, self._word(GOODBYE, self._theirs))

    def _word(self, word: bytes, sender: int) -> bytes:
        tag = message_tag(self._secret, self._channel, sender, int.from_bytes(word), WORD.size)
        return WORD.pack(word, sender, self._channel, tag)

    def _wire(self, tag: int, buffer: Buffer, sender: int) -> Tag:
        """The tag as UCX sees it: without the sender peers would mix, without the size a short message would pass."""
        return Tag(message_tag(self._secret, self._channel, sender, tag, buffer.size_bytes))


class UcxLink:
    """A process's door over UCX. Made by `UcxLink.open` inside a running loop."""

    def __init__(self, engine: UcxEngine) -> None:
        self._engine = engine
        self._peers: dict[tuple[bytes, int], UcxPeer] = {}
        self._hearing = asyncio.create_task(self._hear())
        self._closed = False

    @classmethod
    async def open(cls, bind: str) -> "UcxLink":
        """Raises LinkError where UCX cannot start or no network device has the address `bind`."""
        try:
            return cls(UcxEngine(bind))
        except UCXError as error:
            raise LinkError(f"UCX does not start: {error}") from error

    @property
    def address(self) -> bytes:
        return SCHEME + xxhash.xxh3_64_digest(self._engine.address) + self._engine.address

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
        raw = worker_address(address)
        try:
            return UcxPeer(self._engine, raw, channel, secret, lambda: self._peers.pop((address, channel), None))
        except UCXError as error:
            raise LinkError(f"connect: {error}") from error

    async def _hear(self) -> None:
        memory = bytearray(WORD.size)
        view = Array(memoryview(memory))
        while True:
            error = await self._engine.watch(self._engine.worker.tag_recv(view, CONTROL), view)
            if error is None:
                for peer in [peer for peer in self._peers.values() if peer.says(bytes(memory))]:
                    peer.lose("the peer closed the connection")
            memory[:] = bytes(WORD.size)  # a shorter message must not pass for the one before


def worker_address(address: bytes) -> bytes:
    """The bare UCX address; UCX would read a damaged one without checks. Raises LinkError."""
    digest, raw = address[len(SCHEME) : len(SCHEME) + 8], address[len(SCHEME) + 8 :]
    if not address.startswith(SCHEME) or xxhash.xxh3_64_digest(raw) != digest:
        raise LinkError(f"connect: {address[:16]!r}... is not the address of a UCX link")
    return raw
