"""Starts the processes of a transfer bench, has them run jobs at the same time, and ends them."""

import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from subprocess import DEVNULL, Popen, TimeoutExpired
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from livescale.load.bench.samples import BenchFailed
from livescale.load.bench.transfer.node import Outfit, tell
from livescale.load.bench.transfer.node_messages import Answer, Done, Failed, Hello
from livescale.shared.messages.message import Message
from livescale.shared.messages.parameters import Block
from livescale.shared.messages.transfers import Node
from livescale.shared.runtime.settings import LinkSettings

T = TypeVar("T")

START_SECONDS = 120.0  # memory is touched at first-touch speed
JOB_SECONDS = 600.0
END_SECONDS = 5.0


class BenchFleet:
    """Processes that wait for jobs. The first ones are sources; only their memory is filled, all with the same bytes.
    `tickets` are fresh ones for flows."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.blocks: tuple[Block, ...] = ()
        self.tickets = itertools.count()
        self._children: list[tuple[Connection, Popen[bytes]]] = []
        self._made_of: tuple[Sequence[Message], Sequence[Sequence[str]]] = ((), ())

    def start(self, outfits: Sequence[Message], inside: Sequence[Sequence[str]] = ()) -> None:
        """Return when all are up; an outfit's module is the program that it is for. `inside`: for each a command that
        runs it, as on another machine. Raises BenchFailed."""
        self._made_of = outfits, inside
        for outfit, runner in zip(outfits, inside or [()] * len(outfits), strict=True):
            ours, theirs = Pipe()
            # A program of its own: a child forked from a process that has used UCX hangs.
            program = [sys.executable, "-c", f"from {type(outfit).__module__} import main; main({theirs.fileno()})"]
            process = Popen([*runner, *program], pass_fds=[theirs.fileno()], stdin=DEVNULL, stdout=DEVNULL)
            self._children.append((ours, process))
            theirs.close()
            tell(ours, outfit)
        hellos = [self._answer(index, Hello, START_SECONDS) for index in range(len(outfits))]
        self.nodes = [Node(id=f"node-{i}", place="worker", address=hello.address) for i, hello in enumerate(hellos)]
        self.blocks = hellos[0].blocks

    def end(self) -> None:
        """End every process: by asking, by force after some seconds."""
        for pipe, _ in self._children:
            with suppress(OSError):
                pipe.send_bytes(b"")
        deadline = time.monotonic() + END_SECONDS
        for pipe, process in self._children:
            with suppress(TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.wait()
            pipe.close()
        self._children.clear()

    def renew(self) -> None:
        """Replace these processes, whose links may be broken, by new ones. Raises BenchFailed."""
        self.end()
        self.start(*self._made_of)

    def run(self, jobs: Mapping[int, Message]) -> dict[int, Done]:
        """Run jobs at the same time, begun in the order given. Raises BenchFailed."""
        for index, job in jobs.items():
            tell(self._children[index][0], job)
        return {index: self._answer(index, Done, JOB_SECONDS) for index in jobs}

    def _answer(self, index: int, kind: type[T], seconds: float) -> T:
        pipe = self._children[index][0]
        if not pipe.poll(seconds):
            raise BenchFailed(f"process {index} did not answer within {seconds:g} s")
        try:
            answer = msgspec.msgpack.decode(pipe.recv_bytes(), type=Answer)
        except EOFError:
            raise BenchFailed(f"process {index} died") from None
        if isinstance(answer, Failed):
            raise BenchFailed(f"process {index}: {answer.reason}")
        assert isinstance(answer, kind)
        return answer


@contextmanager
def running(outfits: Sequence[Message], inside: Sequence[Sequence[str]] = ()) -> Iterator[BenchFleet]:
    """A fleet of these processes, ended with the block of code; see `BenchFleet.start`."""
    fleet = BenchFleet()
    try:
        fleet.start(outfits, inside)
        yield fleet
    finally:
        fleet.end()


@contextmanager
def started(
    count: int,
    settings: LinkSettings,
    sizes: Sequence[int],
    *,
    sources: int = 1,
    has_spare: bool = False,
    places: Sequence[str] = (),
) -> Iterator[BenchFleet]:
    """A fleet of `count` processes with a set of blocks of these sizes each, ended with the block of code.

    `places`: where in the topology each is.
    """
    links = [replace(settings, place=place) for place in places] or [settings] * count
    outfits = [Outfit(link, list(sizes), index < sources, has_spare) for index, link in enumerate(links)]
    with running(outfits) as fleet:
        yield fleet
