"""What a process that moves parameters for a bench is told to do, and what it answers: messages over a pipe, and this
process's end of it."""

import ctypes
import signal
from multiprocessing.connection import Connection

import msgspec

from livescale.shared.messages.message import Message
from livescale.shared.messages.parameters import Block
from livescale.shared.messages.transfers import Inflow, Node, Outflow

PR_SET_PDEATHSIG = 1


class Copy(Message, frozen=True):
    """Copy the whole set within this process: what a hop is measured against."""


class Read(Message, frozen=True):
    """Have the kernel copy the whole set from process `pid`, where its blocks lie at `addresses`: what a hop over CMA
    comes down to."""

    pid: int
    addresses: tuple[int, ...]


class Check(Message, frozen=True):
    """Compute the checksum of each block, whatever is in it."""


class Hop(Message, frozen=True):
    """Send each of the first `count` blocks as one message, or take these; checksums only after the clock was
    stopped."""

    peer: Node
    count: int
    takes: tuple[Block, ...] = ()


class Share(Message, frozen=True):
    """A process's share in a plan: what it receives, and then has verified, and what it sends. `maps`: what it receives
    must not come over the link."""

    chunk_bytes: int
    inflows: list[Inflow]
    outflows: list[Outflow]
    blocks: tuple[Block, ...]
    maps: bool = False


class GlooRank(Message, frozen=True):
    """One of `count` processes of a gloo broadcast. The first, at `leader` (address:port), is the source, and only its
    memory is filled."""

    rank: int
    count: int
    leader: str
    sizes: list[int]


class Broadcast(Message, frozen=True):
    """Take part in a gloo broadcast; checksums are looked at after the clock was stopped."""

    blocks: tuple[Block, ...]


class Stream(Message, frozen=True):
    """A flow to a peer, or from it: so many messages of so many bytes, whatever they say."""

    peer: Node
    messages: int
    message_bytes: int
    takes: bool = False


class Streams(Message, frozen=True):
    """A job: run several flows at the same time."""

    streams: tuple[Stream, ...]


class Meet(Message, frozen=True):
    """Open a channel to a peer, as workers do that join; the one that `ends` it is the last to open it."""

    peer: Node
    ends: bool


Job = Copy | Read | Check | Hop | Share | Streams | Meet


class Hello(Message, frozen=True):
    """A process is up: its address, and the blocks in its memory (the source's only). `reads`: the job that copies
    them to another process of this machine."""

    address: bytes
    blocks: tuple[Block, ...]
    reads: Read | None = None


class Done(Message, frozen=True):
    """A job's begin and end on the machine's monotonic clock, and the CPU seconds it took. `ends`: of each of several
    flows, or when each block of a plan was verified. `tokens`: made meanwhile by a process that decodes; `loop`: the
    CPU seconds of its event loop."""

    began: float
    ended: float
    cpu: float
    ends: tuple[float, ...] = ()
    tokens: int = 0
    loop: float = 0.0
    connected: float = 0.0
    first_byte: float = 0.0


class Failed(Message, frozen=True):
    """The answer to a job that failed, with the reason."""

    reason: str


Answer = Hello | Done | Failed


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def tell(pipe: Connection, message: Message) -> None:
    pipe.send_bytes(msgspec.msgpack.encode(message))
