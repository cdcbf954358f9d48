"""UCX endpoints that outlive their channels: the next channel to the same process takes one, and its first byte waits
for no handshake."""

import asyncio
import struct
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import xxhash
from ucxx._lib.arr import Array
from ucxx._lib.libucxx import UCXEndpoint, UCXRequest
from ucxx.types import Tag

from livescale.shared.links.ucx_engine import UcxEngine

CONTROL = Tag(0x6C697665_7363616C)
# What a peer says on CONTROL, the hash of its address, on which channel; then the number of its endpoint, or its proof.
WORD = struct.Struct("8sQQQ")
HELLO, GOODBYE = b"hello   ", b"goodbye "
# Over an endpoint that was kept a process asks whether the other end has it too, for this channel or for none.
AGAIN, WELCOME, REFUSED = b"again   ", b"welcome ", b"refused "
DROPPED = b"dropped "  # the endpoint with this number is closed, which UCX does not tell


MOST_KEPT = 256  # each is a descriptor at both ends


class UcxEndpoint:
    """A UCX endpoint to one process, with what its next channel has to know of it."""

    def __init__(self, engine: UcxEngine, address: bytes, mine: int) -> None:
        """Connect to the UCX worker at `address`; `mine` is the hash of this process's. Raises UCXError."""
        self._mine = mine
        self.theirs = xxhash.xxh3_64_intdigest(address)
        self.transports = frozenset[str]()  # none before the first hello is on its way
        self.requests = set[UCXRequest]()
        self.is_alive = True
        self.is_paired = True  # until the other end says that it has closed its own
        self.on_gone: Callable[[], object] = lambda: None
        self._engine = engine
        self.ucx: Any = engine.endpoint(address)
        self.number = engine.made[address]
        self.ucx.set_close_callback(asyncio.get_running_loop().call_soon, (self._gone,))

    @property
    def is_reusable(self) -> bool:
        return self.is_alive and self.is_paired and bool(self.transports)

    @property
    def unfinished(self) -> list[UCXRequest]:
        """What UCX has not completed, goodbyes included."""
        return [request for request in self.requests if not request.completed]

    def say(self, word: bytes) -> tuple[UCXRequest, Array]:
        """Have a word leave, for the caller to wait for."""
        memory = Array(memoryview(word))
        return self.ucx.tag_send(memory, CONTROL), memory

    def tell(self, word: bytes) -> UCXRequest:
        """Say a word without waiting until it has left."""
        return self.post(*self.say(word))

    def post(self, request: UCXRequest, memory: Array) -> UCXRequest:
        """Have a request completed that nobody waits for."""
        if request.completed:  # at once, as words are that leave right away
            self._engine.wake()
            return request
        self.requests.add(request)
        self._engine.watch(request, memory).add_done_callback(lambda _: self.requests.discard(request))
        return request

    def about(self, said: bytes, channel: int = 0) -> bytes:
        """Pack what is said of this endpoint to the other end: it names the pair, and one channel of it."""
        return WORD.pack(said, self._mine, channel, self.number)

    def close(self) -> None:
        """Close it, and end what is under way on it. The other end is told, so that it keeps no half of a pair."""
        if self.is_reusable:
            self._engine.push(self.tell(self.about(DROPPED)))
        self._engine.close_endpoint(self._let_go())

    def close_later(self) -> None:
        """Close it once all that is under way on it has ended; see `UcxEngine.close_later`."""
        unfinished = self.unfinished
        self._engine.close_later(self._let_go(), unfinished)

    def _let_go(self) -> UCXEndpoint:
        """Refer no more to what belongs to UCX, which frees its descriptors once nothing does."""
        ucx, self.ucx = self.ucx, None
        ucx.remove_close_callback()
        self.requests.clear()
        self.on_gone = lambda: None
        return ucx

    def _gone(self) -> None:
        self.is_alive = False
        self.on_gone()


class KeptEndpoints:
    """Endpoints without a channel, by the address of the process at the other end; the latest used are last.

    One that breaks is let go at once, so a process that has ended leaves none behind.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._idle: dict[bytes, list[UcxEndpoint]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._idle.values()))

    def keep(self, address: bytes, endpoint: UcxEndpoint) -> None:
        endpoint.requests = set(endpoint.unfinished)
        endpoint.on_gone = partial(self._drop, address, endpoint)
        self._idle[address] = [*self._idle.pop(address, ()), endpoint]

    def take(self, address: bytes, number: int | None, taken: Collection[int]) -> UcxEndpoint | None:
        """The endpoint with this number, or without one that with the lowest number that the other end has not
        `taken`: both ends then come to the same."""
        idle = self._idle.get(address, ())
        fits = [one for one in idle if (one.number == number if number is not None else one.number not in taken)]
        chosen = min(fits, key=lambda one: one.number, default=None)
        if chosen is not None:
            self._remove(address, chosen)
        return chosen

    def to(self, theirs: int) -> list[UcxEndpoint]:
        """All to the process whose address has this hash."""
        return [one for idle in self._idle.values() for one in idle if one.theirs == theirs]

    def drop(self, theirs: int, number: int) -> None:
        """Close the endpoint with this number, as the other end has closed its own."""
        for address, idle in list(self._idle.items()):
            for endpoint in list(idle):
                if (endpoint.theirs, endpoint.number) == (theirs, number):
                    endpoint.is_paired = False
                    self._drop(address, endpoint)

    def trim(self, is_used: Callable[[bytes], bool]) -> None:
        """Close the longest unused ones beyond the limit.

        One to a process with an open channel may be that channel's at the other end, and stays meanwhile.
        """
        for address in list(self._idle):
            while len(self) > self.most and address in self._idle and not is_used(address):
                self._drop(address, self._idle[address][-1])

    def forget(self, address: bytes) -> None:
        """Close those to the process at this address."""
        for endpoint in list(self._idle.get(address, ())):
            self._drop(address, endpoint)

    def close(self) -> None:
        for address in list(self._idle):
            self.forget(address)

    def _drop(self, address: bytes, endpoint: UcxEndpoint) -> None:
        self._remove(address, endpoint)
        if endpoint.unfinished and endpoint.is_alive:
            endpoint.close_later()
        else:
            endpoint.close()

    def _remove(self, address: bytes, endpoint: UcxEndpoint) -> None:
        idle = [one for one in self._idle.pop(address) if one is not endpoint]
        if idle:
            self._idle[address] = idle
