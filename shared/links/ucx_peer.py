"""`UcxPeer`: a channel to one process over a UCX endpoint of its own, and the words that both ends say about it."""

import asyncio
import hmac
import struct
from collections.abc import Callable
from functools import partial

from ucxx._lib.arr import Array
from ucxx._lib.libucxx import UCXRequest
from ucxx.types import Tag

from livescale.shared.links.contract import Buffer, LinkError
from livescale.shared.links.link_path import LinkPath, MemoryKind, choose_path
from livescale.shared.links.process_memory import ProcessMemory
from livescale.shared.links.tickets import hash_key, message_tag
from livescale.shared.links.ucx_engine import UcxEngine, endpoint_transports
from livescale.shared.links.ucx_kept import AGAIN, DROPPED, GOODBYE, HELLO, REFUSED, WELCOME, WORD, UcxEndpoint

# From here on the receiver copies a message from the sender's memory itself: piece by piece, in a thread, and at less
# cost than UCX. Below, the words and the turn of the thread that this takes cost more.
LEAST_COPIED = 2 << 20
PLACE = struct.Struct("Q")  # the sender's word: where the bytes lie
COPIED, REFUSED_COPY = b"\1", b"\0"  # the receiver's: that it has them, or that they are to be sent
PLACED, ANSWERED = 1 << 62, 1 << 63  # added to the size of a message, in the tags of the words about it

SETTLE_SECONDS = 5.0
CONFIRM_SECONDS = 0.5
GONE = "the peer closed the connection"


class EndpointClosed(LinkError):
    """The other end closed an endpoint, or its process is gone."""


class UcxPeer:
    """An endpoint to one process.

    UCX matches tags for a worker; `_wire` makes them differ by peer, channel and size.
    """

    def __init__(
        self,
        engine: UcxEngine,
        endpoint: UcxEndpoint,
        mine: int,
        memory: MemoryKind,
        channel: int,
        secret: bytes,
        on_lost: Callable[["UcxPeer"], object],
        source: ProcessMemory | None,
    ) -> None:
        """`mine` is the hash of this process's address, `memory` the kind of the other's, and `source` that memory
        where each of the two copies from the other's."""
        self._engine = engine
        self.endpoint = endpoint
        self.is_kept = bool(endpoint.transports)
        self._memory = memory
        self._on_lost = on_lost
        self._source = source
        self.channel = channel
        self._key = hash_key(secret)
        self._mine = mine
        self.theirs = endpoint.theirs
        self._lost: str | None = None
        self._greeted = False
        self._answer: asyncio.Future[bool] | None = None
        self._left = False
        self._sending = 0
        self.under_way = 0
        endpoint.on_gone = lambda: self.lose("the peer is gone")

    async def greet(self, timeout: float) -> None:
        """Connect: the first message sets the transports up, or shows that the peer is not there. Raises LinkError,
        EndpointClosed where the other end closed this endpoint meanwhile."""
        if not self._greeted:
            self._check("connect")
            try:
                await self._run(*self.endpoint.say(self.endpoint.about(HELLO, self.channel)), "connect", timeout)
            except LinkError as error:
                raise error if self.endpoint.is_alive else EndpointClosed(str(error)) from None
            self._greeted = True
            if self._lost is None:
                self.endpoint.transports = endpoint_transports(self.endpoint.ucx.handle)

    async def resume(self, timeout: float, *, is_expected: bool) -> bool:
        """Greet over an endpoint that was kept. Returns whether the other end has it too, and answers in time.

        It need not be asked where it is known to have taken this endpoint for the channel (`is_expected`).
        """
        if self._greeted or is_expected:
            if not self._greeted:
                self._greeted = True
                self.endpoint.tell(self.endpoint.about(HELLO, self.channel))
            return self._lost is None
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
            self.endpoint.tell(self.endpoint.about(AGAIN, self.channel))
        try:
            await asyncio.wait((self._answer,), timeout=timeout)
        except asyncio.CancelledError:
            self._leave("connect was cancelled")
            raise
        self._greeted = self._answer.done() and self._answer.result()
        return self._greeted

    def hear(self, said: bytes, channel: int, number: int) -> None:
        """Note what the other end says of the endpoint with this number, if that is this one."""
        if number != self.endpoint.number:
            return
        if said == DROPPED:
            self.endpoint.is_paired = False  # so it is not kept here
        if said == DROPPED or (said in (WELCOME, REFUSED) and channel == self.channel):
            self._answered(said == WELCOME)

    def _answered(self, is_welcome: bool) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(is_welcome)

    @property
    def path(self) -> LinkPath:
        engine = self._engine
        return choose_path(self.endpoint.transports, engine.memory, self._memory, gpudirect=engine.gpudirect)

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        what = f"send {tag:#x}"
        self._check(what)
        memory = Array(buffer.view)
        self._sending += 1
        try:
            if self._is_copied(buffer) and await self._have_copied(tag, memory, what, timeout):
                return
            request = self.endpoint.ucx.tag_send(memory, self._wire(tag, buffer.size_bytes, self._mine))
            await self._run(request, memory, what, timeout)
        finally:
            self._sending -= 1
            if self._left and not self._sending:
                self.lose(GONE)

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        what = f"receive {tag:#x}"
        self._check(what)
        if self._is_copied(buffer) and await self._copy(tag, buffer, what, timeout):
            return
        await self._take(tag, buffer.size_bytes, Array(buffer.view), what, timeout)

    def _is_copied(self, buffer: Buffer) -> bool:
        return self._source is not None and buffer.size_bytes >= LEAST_COPIED

    async def _have_copied(self, tag: int, memory: Array, what: str, timeout: float) -> bool:
        """Say where the bytes lie. Returns whether the other end has copied them, else they are to be sent."""
        place, answer = Array(memoryview(PLACE.pack(memory.ptr))), bytearray(len(COPIED))
        said = self.endpoint.ucx.tag_send(place, self._wire(tag, memory.nbytes + PLACED, self._mine))
        self.endpoint.post(said, place)
        await self._take(tag, memory.nbytes + ANSWERED, Array(memoryview(answer)), what, timeout)
        if answer == COPIED:
            return True
        self._check(what)
        return False

    async def _copy(self, tag: int, buffer: Buffer, what: str, timeout: float) -> bool:
        """Copy the bytes from where they lie. Returns False where they have to be sent after all."""
        assert self._source is not None
        assert isinstance(buffer.view, memoryview)
        place = bytearray(PLACE.size)
        await self._take(tag, buffer.size_bytes + PLACED, Array(memoryview(place)), what, timeout)
        self._check(what)
        (address,) = PLACE.unpack(place)
        copy = partial(self._source.copy, address, buffer.view, buffer.on_piece, lambda: self._lost is not None)
        self.under_way += 1
        try:
            is_copied = await self._engine.copying.begin(copy)
        except asyncio.CancelledError:
            self._leave(f"{what} was cancelled")
            await self._engine.copying.settle()  # until nothing writes into the buffer
            raise
        except OSError as error:
            self._leave(str(error))
            raise LinkError(f"{what}: {self._lost}") from error
        finally:
            self.under_way -= 1
        self._check(what)
        answer = Array(memoryview(COPIED if is_copied else REFUSED_COPY))
        wire = self._wire(tag, buffer.size_bytes + ANSWERED, self._mine)
        self.endpoint.post(self.endpoint.ucx.tag_send(answer, wire), answer)
        return is_copied

    async def _take(self, tag: int, size: int, memory: Array, what: str, timeout: float) -> None:
        # A receive posted on the worker would never end when the peer dies; one on the endpoint does.
        request = self.endpoint.ucx.tag_recv(memory, self._wire(tag, size, self.theirs))
        await self._run(request, memory, what, timeout)

    async def close(self) -> None:
        self._leave("closed")

    def _check(self, what: str) -> None:
        if self._lost is not None or self._left:
            raise LinkError(f"{what}: {self._lost or GONE}")

    async def _run(self, request: UCXRequest, memory: Array, what: str, timeout: float) -> None:
        done = self._engine.watch(request, memory)
        self.endpoint.requests.add(request)
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
            self.endpoint.requests.discard(request)
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
            self._engine.push(self.endpoint.tell(self._goodbye(self._mine)))
            self.lose(reason)

    @property
    def is_stuck(self) -> bool:
        """Whether sends alone are under way, and TCP cannot get rid of them: the network may be cut.

        It is not where the other end has said goodbye.
        """
        return self.path.name == "tcp" and not self._left and 0 < self.under_way == self._sending

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
        self._answered(False)
        self._on_lost(self)

    def says(self, word: bytes) -> bool:
        """Whether a goodbye is that of this peer on this channel."""
        return hmac.compare_digest(word, self._goodbye(self.theirs))

    def _goodbye(self, sender: int) -> bytes:
        proof = message_tag(self._key, self.channel, sender, int.from_bytes(GOODBYE), WORD.size)
        return WORD.pack(GOODBYE, sender, self.channel, proof)

    def _wire(self, tag: int, size_bytes: int, sender: int) -> Tag:
        """The tag that UCX sees.

        Without the sender in it peers would mix; without the size a short message would pass.
        """
        return Tag(message_tag(self._key, self.channel, sender, tag, size_bytes))


def _expire(done: asyncio.Future[str | None]) -> None:
    if not done.done():
        done.set_exception(TimeoutError())
