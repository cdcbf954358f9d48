"""`UcxLink`: bulk bytes over UCX, by CMA on one host, by tcp or RDMA between hosts.

UCX does not authenticate peers. Every message is matched by its tag, a hash under the channel's secret. A process that
does not know the secret matches no receive and is sent nothing.

What a channel leaves quiet and unbroken is kept for the next one to the same process, as an endpoint that is new takes
a handshake. No endpoint ever has two channels, so what breaks one leaves the others alone.

An address of a link is the kind of its memory, a checksum, the mark of the process, and the address of its UCX worker.
What way parameters take depends on both ends' memory, and on whether each can read the other's.
"""

import asyncio
from functools import partial

import xxhash
from ucxx._lib.arr import Array
from ucxx.exceptions import UCXError

from livescale.shared.links.contract import LinkError
from livescale.shared.links.link_path import MemoryKind
from livescale.shared.links.process_memory import MARK, ProcessMark, ProcessMemory
from livescale.shared.links.ucx_engine import UcxEngine
from livescale.shared.links.ucx_kept import (
    AGAIN,
    CONTROL,
    DROPPED,
    GOODBYE,
    HELLO,
    MOST_KEPT,
    REFUSED,
    WELCOME,
    WORD,
    KeptEndpoints,
    UcxEndpoint,
)
from livescale.shared.links.ucx_peer import EndpointClosed, UcxPeer

SCHEMES: dict[MemoryKind, bytes] = {"host": b"ucx:host:", "pinned": b"ucx:pinned:", "cuda": b"ucx:cuda:"}
DIGEST_BYTES = 8


def link_address(worker: bytes, memory: MemoryKind, mark: ProcessMark) -> bytes:
    """The address of a link whose UCX worker has the address `worker`, in the process with this mark."""
    rest = mark.pack() + worker
    return SCHEMES[memory] + xxhash.xxh3_64_digest(rest) + rest


def worker_address(address: bytes) -> bytes:
    """The address of the UCX worker in a link's address. Raises LinkError."""
    return _rest(address)[MARK.size :]


def memory_at(address: bytes) -> MemoryKind:
    """What the process at this address keeps parameters in. Raises LinkError."""
    for memory, scheme in SCHEMES.items():
        if address.startswith(scheme):
            return memory
    raise LinkError(f"connect: {address[:16]!r}... is not the address of a UCX link")


def readable_memory(mine: bytes, theirs: bytes) -> ProcessMemory | None:
    """The memory of the process at the address `theirs`; None where it is not copied from by the process at `mine`, nor
    the other way round. Raises LinkError."""
    if "cuda" in (memory_at(mine), memory_at(theirs)):
        return None
    return ProcessMemory.of(*(ProcessMark.unpack(_rest(address)[: MARK.size]) for address in (mine, theirs)))


def _rest(address: bytes) -> bytes:
    """All behind the checksum. Raises LinkError for a damaged address, which UCX would not notice."""
    checked = address.removeprefix(SCHEMES[memory_at(address)])
    digest, rest = checked[:DIGEST_BYTES], checked[DIGEST_BYTES:]
    if xxhash.xxh3_64_digest(rest) != digest or len(rest) < MARK.size:
        raise LinkError(f"connect: {address[:16]!r}... is a damaged address")
    return rest


MOST_NUMBERS = 1024  # only for channels that were greeted, as any process can say hello
ANSWER_SECONDS = 0.5  # then a new endpoint shows whether the process is there


class UcxLink:
    """A link over UCX. Make it by `UcxLink.open` inside a running event loop."""

    def __init__(self, engine: UcxEngine, most_kept: int = MOST_KEPT) -> None:
        self._engine = engine
        self._mine = xxhash.xxh3_64_intdigest(engine.address)
        self._peers: dict[tuple[bytes, int], UcxPeer] = {}
        self._spent: dict[bytes, list[UcxEndpoint]] = {}  # of channels that ended, by address
        self._kept = KeptEndpoints(most_kept)
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
        return link_address(self._engine.address, self._engine.memory, self._engine.mark)

    @property
    def most_kept(self) -> int:
        return self._kept.most

    def forget(self, address: bytes) -> None:
        if not self._is_used(address):
            self._kept.forget(address)

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> UcxPeer:
        if self._closed:
            raise LinkError("connect: this link is closed")
        end, until = (address, channel), asyncio.get_running_loop().time() + timeout
        peer = self._peers.get(end) or self._kept_peer(address, channel, secret)
        if peer is not None and peer.is_kept:
            is_expected = self._numbers.get((peer.theirs, channel)) == peer.endpoint.number
            if await peer.resume(min(timeout, ANSWER_SECONDS), is_expected=is_expected):
                return peer
            peer.lose("the other end has closed what was kept")
            if self._closed:
                raise LinkError("connect: this link is closed")
        try:
            return await self._greeted(address, channel, secret, until)
        except EndpointClosed:
            # By the other end, which may not have meant it: see `_lost`. Where the process is gone, so is the next one.
            return await self._greeted(address, channel, secret, until)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for peer in list(self._peers.values()):
            await peer.close()
        self._kept.close()
        self._hearing.cancel()
        await asyncio.wait((self._hearing,))
        self._engine.close()

    async def _greeted(self, address: bytes, channel: int, secret: bytes, until: float) -> UcxPeer:
        peer = self._peers.get((address, channel)) or self._new_peer(address, channel, secret)
        await peer.greet(max(0.0, until - asyncio.get_running_loop().time()))
        return peer

    def _kept_peer(self, address: bytes, channel: int, secret: bytes) -> UcxPeer | None:
        """A peer over an endpoint that was kept, the one that the other end has taken for this channel if it has."""
        theirs = xxhash.xxh3_64_intdigest(worker_address(address))
        taken = {number for (process, _), number in self._numbers.items() if process == theirs}
        endpoint = self._kept.take(address, self._numbers.get((theirs, channel)), taken)
        return None if endpoint is None else self._peer(address, endpoint, channel, secret)

    def _new_peer(self, address: bytes, channel: int, secret: bytes) -> UcxPeer:
        try:
            endpoint = UcxEndpoint(self._engine, worker_address(address), self._mine)
        except UCXError as error:
            raise LinkError(f"connect: {error}") from error
        return self._peer(address, endpoint, channel, secret)

    def _peer(self, address: bytes, endpoint: UcxEndpoint, channel: int, secret: bytes) -> UcxPeer:
        lost, source = partial(self._lost, address), readable_memory(self.address, address)
        peer = UcxPeer(self._engine, endpoint, self._mine, memory_at(address), channel, secret, lost, source)
        self._peers[address, channel] = peer
        return peer

    def _lost(self, address: bytes, peer: UcxPeer) -> None:
        """Keep the endpoint if it can be used again, else close it, or leave that to the last channel between these
        two processes.

        UCX pairs their endpoints in the order in which each side made them. Where both opened channels in different
        orders, an endpoint that is closed here may be another channel's there. What is under way ends at once even so.
        """
        endpoint = peer.endpoint
        self._peers.pop((address, peer.channel), None)
        paired = self._numbers.pop((peer.theirs, peer.channel), None) == endpoint.number
        if peer.is_stuck:
            endpoint.close_later()
        elif endpoint.is_reusable and not peer.under_way and not self._closed:
            self._kept.keep(address, endpoint)
            self._kept.trim(self._is_used)
        elif paired or peer.under_way or not endpoint.is_alive:
            endpoint.close()
        else:
            self._spent.setdefault(address, []).append(endpoint)
        if not self._is_used(address):
            for one in self._spent.pop(address, []):
                one.close()

    def _is_used(self, address: bytes) -> bool:
        return any(other == address for other, _ in self._peers)

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
        peers = [peer for peer in self._peers.values() if peer.theirs == sender]
        if said == HELLO:
            self._note(sender, channel, number)
        elif said == AGAIN:
            self._answer(peers, sender, channel, number)
        elif said == GOODBYE:
            self._end(peers, word)
        elif said == DROPPED:
            self._kept.drop(sender, number)
        for peer in peers:
            peer.hear(said, channel, number)

    def _end(self, peers: list[UcxPeer], goodbye: bytes) -> None:
        ended = [peer for peer in peers if peer.says(goodbye)]
        for peer in ended:
            peer.hear_goodbye()
        if not ended:
            _, sender, channel, _ = WORD.unpack(goodbye)
            self._numbers.pop((sender, channel), None)  # it ended before this end began

    def _note(self, sender: int, channel: int, number: int) -> None:
        self._numbers[sender, channel] = number
        if len(self._numbers) > MOST_NUMBERS:
            self._numbers.pop(next(iter(self._numbers)))

    def _answer(self, peers: list[UcxPeer], sender: int, channel: int, number: int) -> None:
        """Say whether the pair of an endpoint that was kept is here, and has no other channel."""
        kept = self._kept.to(sender)
        pairs = {one.number: channel for one in kept} | {peer.endpoint.number: peer.channel for peer in peers}
        if pairs.get(number) == channel:
            self._note(sender, channel, number)
        ways = [*kept, *(peer.endpoint for peer in peers)]
        if ways:  # else all was closed, and the other end has been told
            way = next((one for one in ways if one.number == number), ways[0])
            said = DROPPED if number not in pairs else WELCOME if pairs[number] == channel else REFUSED
            way.tell(WORD.pack(said, self._mine, channel, number))
