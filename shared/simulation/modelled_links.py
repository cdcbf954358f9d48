"""Links between processes of one event loop: messages are handed over after a delay, and nothing is shaped.

They keep the contract of `shared/links`: messages are matched by tag and peer, both ends name channel and secret, what
ends a channel fails what waits for it at the other end a moment later. Wrap them in a `ShapedLink` for rates.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context

from msgspec import Struct

from livescale.shared.links.contract import Buffer, LinkError, View
from livescale.shared.links.link_path import LinkPath
from livescale.shared.simulation.overdue import OverdueFutures
from livescale.shared.simulation.sparse_memory import SparseBytes, SparseContent, SparseKv
from livescale.shared.simulation.virtual_time import running_loop

PATH = LinkPath("modelled", "a simulation hands messages over in its own memory")
SentContent = bytes | memoryview | SparseContent  # of a message, by the kind of its memory
Way = tuple[bytes, bytes, int, bytes]  # from one address to another, on a channel, under a secret


class Receive(Struct, frozen=True):
    """A receive that waits for a message: `came` says how many bytes it had. Bytes for which `view` has no room are
    not written."""

    view: View
    came: asyncio.Future[int]


class Mailbox:
    """What is on its way, or has come, from one process to another on one channel."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.is_closed = False
        self.peer: ModelledPeer | None = None  # of the process that receives
        self._came: dict[int, deque[SentContent]] = {}  # by tag, as what waits
        self._waiting: dict[int, deque[Receive]] = {}

    def put(self, tag: int, data: SentContent) -> None:
        """Write a message to where it is waited for, or keep a copy: its sender goes on to use its memory."""
        waiting = self._waiting.get(tag)
        while waiting:
            receive = waiting.popleft()
            if not waiting:
                del self._waiting[tag]  # each chunk of parameters has a tag of its own
            if not receive.came.done():
                _hand_over(data, receive)
                return
        self._came.setdefault(tag, deque()).append(bytes(data) if isinstance(data, memoryview) else data)

    def take(self, tag: int, view: View) -> asyncio.Future[int]:
        """Have the next message with this tag written to `view`. What came before the channel was closed can still be
        had."""
        receive = Receive(view, asyncio.get_running_loop().create_future())
        came = self._came.get(tag)
        if came:
            _hand_over(came.popleft(), receive)
            if not came:
                del self._came[tag]
        elif self.is_closed:
            receive.came.set_exception(LinkError(f"receive {tag:#x}: the peer closed the channel"))
        else:
            self._waiting.setdefault(tag, deque()).append(receive)
        return receive.came

    def close(self) -> None:
        self.is_closed = True
        for tag, waiting in self._waiting.items():
            for receive in waiting:
                if not receive.came.done():
                    receive.came.set_exception(LinkError(f"receive {tag:#x}: the peer closed the channel"))
        self._waiting.clear()


class ModelledNetwork:
    """What joins the links of a simulation. A message takes `delay_seconds`, beside what shaping adds.

    `spoil` says what arrives of the parameters that are sent from an address.
    """

    def __init__(self, delay_seconds: float) -> None:
        if delay_seconds <= 0:
            raise ValueError(f"delay_seconds is {delay_seconds}: messages take time, give more than 0")
        self.delay_seconds = delay_seconds
        self._mailboxes: dict[bytes, dict[Way, Mailbox]] = {}  # of each open link, by its address
        self.spoil: Callable[[bytes, SparseContent], SparseContent] = lambda sender, content: content
        self._cut: set[frozenset[bytes]] = set()

    def open(self, address: bytes) -> "ModelledLink":
        """A link at this address. Raises LinkError where another one is there."""
        if address in self._mailboxes:
            raise LinkError(f"address: a link at {address!r} is open already")
        self._mailboxes[address] = {}
        return ModelledLink(self, address)

    def has(self, address: bytes) -> bool:
        return address in self._mailboxes

    def cut(self, one: bytes, other: bytes) -> None:
        """Let nothing pass between two links until `mend`; both ends of what is open notice a moment later."""
        self._cut.add(frozenset((one, other)))
        for box in self._mailboxes.get(one, {}).values():
            if other in box.way[:2]:
                self.close_later(box)

    def mend(self, one: bytes, other: bytes) -> None:
        self._cut.discard(frozenset((one, other)))

    def is_cut(self, one: bytes, other: bytes) -> bool:
        return frozenset((one, other)) in self._cut

    def mailbox(self, way: Way) -> Mailbox:
        """The mailbox of this way, which is there until either end closes it."""
        sender, receiver, *_ = way
        box = self._mailboxes[sender].get(way) or self.make_mailbox(way)
        for address in (sender, receiver):
            self._mailboxes[address][way] = box
        return box

    def make_mailbox(self, way: Way) -> Mailbox:
        """A mailbox for a way that has none. A network that watches what arrives makes one of its own."""
        return Mailbox(way)

    def close(self, box: Mailbox) -> None:
        """Close a way and forget its mailbox, at both ends. Idempotent."""
        box.close()
        for address in box.way[:2]:
            boxes = self._mailboxes.get(address, {})
            if boxes.get(box.way) is box:
                del boxes[box.way]

    def remove(self, address: bytes) -> None:
        """Close all ways to and from a link that is gone; its peers notice a moment later."""
        for box in list(self._mailboxes.pop(address, {}).values()):
            if box.way[1] == address:
                self.close(box)
            else:
                self.close_later(box)

    def close_later(self, box: Mailbox) -> None:
        asyncio.get_running_loop().call_later(self.delay_seconds, self.close, box)


class Sending:
    """A message that is sent to a peer: it arrives the network's delay after it leaves.

    It moves by timers of its sender's process, whose task is woken once, when it has arrived: a model is thousands of
    messages a hop.
    """

    __slots__ = ("_arrived", "_content", "_context", "_loop", "_peer", "_tag", "_timer", "_view")

    def __init__(self, peer: "ModelledPeer", tag: int, view: View) -> None:
        self._loop = running_loop()
        self._context = copy_context()
        self._peer, self._tag, self._view = peer, tag, view
        self._content: SentContent = b""
        self._timer: asyncio.TimerHandle | None = None
        self._arrived: asyncio.Future[None] = self._loop.create_future()

    def has_passed(self) -> None:
        """Leave, as all links on the way have been passed. If the sender's process is stopped, it leaves afterwards."""
        if self._loop.slept:
            self._loop.call_soon(self.leave, context=self._context)
        else:
            self.leave()

    def leave(self) -> None:
        if self._arrived.done():
            return
        if self._peer.is_open:
            # Real bytes stay as they are until they have arrived, and are copied once.
            self._content = self._view.copy() if isinstance(self._view, SparseBytes) else _real(self._view)
            self._timer = self._loop.call_later(self._peer.delay_seconds, self._arrive, context=self._context)
        else:
            self._fail()

    def _arrive(self) -> None:
        if self._arrived.done():  # its sender gave it up just now
            return
        if not self._peer.is_open:
            self._fail()
            return
        self._arrived.set_result(None)
        self._peer.put(self._tag, self._view, self._content)

    def _fail(self) -> None:
        self._arrived.set_exception(LinkError(f"send {self._tag:#x}: the peer closed the channel"))

    async def arrival(self) -> None:
        """Wait until it has arrived. Raises LinkError. A caller that stops waiting closes the channel, unless the
        message has not left."""
        try:
            await self._arrived
        except asyncio.CancelledError:
            if self._timer is not None:
                self._timer.cancel()
                await self._peer.close()
            raise


class ModelledPeer:
    """One end of a channel, which sends to one mailbox and receives from another."""

    path = PATH

    def __init__(self, network: ModelledNetwork, comes: Mailbox, goes: Mailbox) -> None:
        self._network = network
        self._comes = comes
        self._goes = goes
        self._overdue = OverdueFutures()

    @property
    def is_open(self) -> bool:
        return not (self._comes.is_closed or self._goes.is_closed)

    async def send(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        sending = Sending(self, tag, buffer.view)
        sending.leave()
        await sending.arrival()

    def put(self, tag: int, view: View, content: SentContent) -> None:
        """Hand over what was in `view` as it left to the other end, where it has arrived."""
        if isinstance(content, SparseContent) and not isinstance(view, SparseKv):
            content = self._network.spoil(self._goes.way[0], content)
        self._goes.put(tag, content)

    @property
    def delay_seconds(self) -> float:
        return self._network.delay_seconds

    async def receive(self, tag: int, buffer: Buffer, *, timeout: float) -> None:
        coming = self._comes.take(tag, buffer.view)
        self._overdue.add(coming, timeout)
        try:
            size_bytes = await coming
        except asyncio.CancelledError:
            await self.close()
            raise
        except TimeoutError:
            await self.close()
            raise LinkError(f"receive {tag:#x} took more than {timeout:g} s") from None
        finally:
            self._overdue.discard(coming)
        if size_bytes != buffer.size_bytes:
            await self.close()
            raise LinkError(f"receive {tag:#x}: {size_bytes} bytes came, not {buffer.size_bytes}")

    async def close(self) -> None:
        self._network.close(self._comes)
        self._network.close_later(self._goes)


class ModelledLink:
    """The link of one process, which others in the same network reach at its address."""

    def __init__(self, network: ModelledNetwork, address: bytes) -> None:
        self.address = address
        self._network = network

    async def connect(self, address: bytes, *, timeout: float, channel: int = 0, secret: bytes = b"") -> ModelledPeer:
        await asyncio.sleep(self._network.delay_seconds)
        if not self._network.has(self.address):
            raise LinkError("connect: this link is closed")
        if not self._network.has(address):
            raise LinkError(f"connect: no process is at {address!r}")
        if self._network.is_cut(self.address, address):
            raise LinkError(f"connect: the link to {address!r} is cut")
        comes = self._network.mailbox((address, self.address, channel, secret))
        if comes.peer is None or not comes.peer.is_open:
            goes = self._network.mailbox((self.address, address, channel, secret))
            comes.peer = ModelledPeer(self._network, comes, goes)
        return comes.peer

    async def close(self) -> None:
        self._network.remove(self.address)


def _real(view: View) -> memoryview:
    assert isinstance(view, memoryview), "a simulation has no memory of devices"
    return view


def _hand_over(content: SentContent, receive: Receive) -> None:
    """Write a message to memory of the same kind, where it is as large as what is waited for, and say that it came."""
    size_bytes, view = len(content), receive.view
    if size_bytes == view.nbytes:
        if isinstance(view, SparseBytes):
            assert isinstance(content, SparseContent)
            view.put(content)
        else:
            assert isinstance(view, memoryview)
            assert not isinstance(content, SparseContent)
            view[:] = content
    receive.came.set_result(size_bytes)
