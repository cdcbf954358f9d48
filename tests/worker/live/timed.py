"""An engine and links that take virtual time, and fail where a peer is gone."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from livescale.services.worker.engine.runner import EngineRunner
from livescale.services.worker.instance.context import FIRST_CHANNEL, TAG_BITS
from livescale.shared.links.contract import Buffer, LinkError, Peer
from tests.shared.transfer.virtual_link import Mail, VirtualLink, VirtualPeer, here

STEP_SECONDS = 0.01  # of a layer as of a step
MESSAGE_SECONDS = 0.003
T = TypeVar("T")


class TimedRunner(EngineRunner):
    """A runner whose every call takes the same time."""

    async def call(self, job: Callable[[], T]) -> T:
        result = await self.compute(job)
        await asyncio.sleep(STEP_SECONDS)
        return result

    async def compute(self, job: Callable[[], T]) -> T:
        return await super().call(job)


Channel = tuple[frozenset[bytes], int]  # its ends, and its number


@dataclass
class Faults:
    """Faults of links.

    No process can connect to one that is `gone`. So many `messages` of hand-offs still go through; None is all of them.
    The next piece of a hand-off's part that is to be `damaged` arrives with another bit. `ends` are the channels of
    each hand-off that were opened; `closed` are those that either end has closed.
    """

    message_seconds: float = MESSAGE_SECONDS
    gone: set[bytes] = field(default_factory=set)
    messages: int | None = None
    damaged: int | None = None
    ends: defaultdict[Channel, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    closed: set[Channel] = field(default_factory=set)

    @property
    def open(self) -> list[Channel]:
        """Channels that both ends have, and neither has closed. One that has no other end, links give up by time."""
        mutual = [one for one, ends in self.ends.items() if len(ends) == 2 and self.gone.isdisjoint(ends)]
        return [one for one in mutual if one not in self.closed]

    def pass_one(self, channel: int) -> None:
        """Let one message pass. Raises LinkError once no more go through."""
        if self.messages is None or channel < FIRST_CHANNEL:
            return
        if self.messages == 0:
            raise LinkError("the link broke")
        self.messages -= 1

    def touch(self, channel: int, tag: int, buffer: Buffer) -> Buffer:
        """Return what arrives of a piece, which may be damaged."""
        if channel < FIRST_CHANNEL or self.damaged != tag >> TAG_BITS:
            return buffer
        self.damaged = None
        copy = bytearray(here(buffer))
        copy[len(copy) // 2] ^= 1
        return Buffer(memoryview(copy))


class TimedPeer(VirtualPeer):
    """A peer to which messages take a moment."""

    def __init__(self, mail: Mail, own: bytes, other: bytes, channel: int, faults: Faults) -> None:
        super().__init__(mail, own, other, channel)
        self._faults = faults
        self._name = frozenset((own, other)), channel
        if channel >= FIRST_CHANNEL:
            faults.ends[self._name].add(own)

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        await asyncio.sleep(self._faults.message_seconds)
        self._faults.pass_one(self._channel)
        if self._name in self._faults.closed:
            raise LinkError("send: the other end was closed")
        await super().send(tag, self._faults.touch(self._channel, tag, buffer), timeout=timeout)

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        message = self._mail[self._other, self._own, self._channel, tag]
        if self._name in self._faults.closed and not message.done():
            raise LinkError("receive: the other end was closed")
        await super().receive(tag, buffer, timeout=timeout)

    async def close(self) -> None:
        """Close the channel, so that the other end waits for nothing any more."""
        if self._name in self._faults.ends:
            self._faults.closed.add(self._name)
            for (*way, _), message in self._mail.items():
                if way == [self._own, self._other, self._channel] and not message.done():
                    message.set_exception(LinkError("receive: the other end was closed"))
                    message.exception()  # whether or not a task waits for it


class TimedLink(VirtualLink):
    """A link with the faults that all links share."""

    def __init__(self, mail: Mail, address: bytes, faults: Faults) -> None:
        super().__init__(mail, address)
        self._faults = faults

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> Peer:
        if address in self._faults.gone:
            raise LinkError("connect: nobody is there")
        return TimedPeer(self._mail, self.address, address, channel, self._faults)
