"""Starts the processes of a transfer bench, has them carry out plans and other jobs at the same time, and ends them."""

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
from livescale.load.bench.transfer.holder import Cold
from livescale.load.bench.transfer.node import Outfit
from livescale.load.bench.transfer.node_messages import Answer, Done, Failed, Hello, Hop, Job, Read, Share, tell
from livescale.services.planner.orders import ticketed
from livescale.services.planner.plans.execution_pipelines import pipeline_ready
from livescale.services.planner.plans.plan import TransferPlan
from livescale.shared.messages.message import Message
from livescale.shared.messages.parameters import Block
from livescale.shared.messages.transfers import Flow, Inflow, Node, Outflow
from livescale.shared.runtime.settings import LinkSettings

T = TypeVar("T")

START_SECONDS = 120.0  # memory is touched at first-touch speed
JOB_SECONDS = 600.0
END_SECONDS = 5.0


class BenchFleet:
    """Processes that wait for jobs. The first ones are sources; only their memory is filled, all with the same bytes.
    `tickets` are fresh ones for flows. `reads` is the job that has the kernel copy the first source's bytes."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.blocks: tuple[Block, ...] = ()
        self.reads: Read | None = None
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
        self.blocks, self.reads = hellos[0].blocks, hellos[0].reads

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


def hop_jobs(fleet: BenchFleet, count: int) -> dict[int, Job]:
    """Node 0 gives node 1 the first blocks, so many of them, without checksums."""
    takes = Hop(fleet.nodes[0], count, takes=fleet.blocks[:count])
    return {1: takes, 0: Hop(fleet.nodes[1], count)}


def chain_jobs(fleet: BenchFleet, length: int, chunk_bytes: int, count: int | None = None) -> dict[int, Job]:
    """Node 0 gives, nodes 1 to `length` take and pass on; the last begins first. `count`: of the first blocks only."""
    hops = [Flow(sender=str(i), receiver=str(i + 1), ticket=next(fleet.tickets)) for i in range(length)]
    return jobs_of(fleet, hops, chunk_bytes, count)


def jobs_of(fleet: BenchFleet, flows: Sequence[Flow], chunk_bytes: int, count: int | None = None) -> dict[int, Job]:
    """The share of each process in a plan whose nodes are named by their numbers. Node 0 has everything, and begins
    last."""
    nodes, jobs = fleet.nodes, dict[int, Job]()
    for index in sorted({int(end) for flow in flows for end in (flow.sender, flow.receiver)}, reverse=True):
        own = str(index)
        inflows = [
            Inflow(
                ticket=one.ticket, upstream=nodes[int(one.sender)], blocks=one.blocks, lane=one.lane, lanes=one.lanes
            )
            for one in flows
            if one.receiver == own
        ]
        outflows = [
            Outflow(ticket=one.ticket, downstream=nodes[int(one.receiver)], blocks=one.blocks, steps=one.steps)
            for one in flows
            if one.sender == own
        ]
        jobs[index] = Share(chunk_bytes, inflows, outflows, fleet.blocks[:count])
    return jobs


def seconds(done: dict[int, Done]) -> float:
    """The seconds from when the source (or the only process, in a copy) began until the last process ended."""
    source = done[min(done)]
    return max(one.ended for one in done.values()) - source.began


class CarriedPlan(msgspec.Struct, frozen=True):
    """A plan that was carried out. `ready`: seconds from the source's begin until a target had a block."""

    plan: TransferPlan
    ready: Mapping[str, Mapping[int, float]]

    @property
    def seconds(self) -> float:
        """The time until the last target had all blocks."""
        return max(max(times.values()) for times in self.ready.values())

    @property
    def executable(self) -> float:
        """When the first execution pipeline had every block."""
        return min(pipeline_ready(nodes, self.ready) for nodes in self.plan.pipelines)


def carry_out(
    fleet: BenchFleet,
    names: Sequence[str],
    plan: TransferPlan,
    chunk_bytes: int,
    disks: Mapping[str, float] | None = None,
) -> CarriedPlan:
    """Carry a plan out. `names` are the plan's names for the processes of the fleet, sources first. `disks` says which
    of them read the model from disk first, and how fast. Raises BenchFailed."""
    number = {name: str(index) for index, name in enumerate(names)}
    flows = [
        replace(flow, sender=number[flow.sender], receiver=number[flow.receiver])
        for flow in ticketed(plan, len(fleet.blocks), fleet.tickets)
    ]
    jobs = jobs_of(fleet, flows, chunk_bytes)
    cold = {names.index(name): rate for name, rate in (disks or {}).items()}
    reading = {index: Cold(job, cold[index]) for index, job in jobs.items() if index in cold and isinstance(job, Share)}
    done = fleet.run({**jobs, **reading})
    began = done[min(done)].began
    return CarriedPlan(plan, {target: since(began, done[names.index(target)]) for target in plan.targets})


def since(began: float, done: Done) -> dict[int, float]:
    return {block: end - began for block, end in enumerate(done.ends)}
