"""Instances of several ranks under virtual time: what their process group does, without sockets."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future as Answer
from functools import partial
from typing import Any, TypeVar, cast

import torch

from livescale.services.worker.engine.contract import RankLost
from livescale.services.worker.engine.tensor_parallel import COLLECTIVE, MEETING, ProcessGroup
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.links.contract import View
from livescale.shared.memory.devices import CPU
from livescale.shared.messages.model_parallel import Meeting
from livescale.shared.simulation.virtual_time import THREAD_SECONDS, VirtualTimeLoop
from tests.worker.live.timed import TimedRunner

T = TypeVar("T")
Tensors = list[torch.Tensor]


def virtual_loop() -> VirtualTimeLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


class Group:
    """A group of ranks, each with a thread of its own. A rank that waits for the others waits in virtual time: the
    clock goes on while all of them compute. Everything else is done on the loop."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.met: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ranks: set[int] = set()
        self._lost: str | None = None
        self._given: dict[int, tuple[torch.Tensor, Answer[Tensors]]] = {}
        self._loop = virtual_loop()
        self._patience = self._loop.call_later(MEETING.total_seconds(), self.lose, "the ranks did not meet")

    async def join(self, rank: int) -> None:
        """Return once all are there. Raises RankLost."""
        self._ranks.add(rank)
        if len(self._ranks) == self.size and not self.met.done():
            self._patience.cancel()
            self.met.set_result(None)
        await asyncio.shield(self.met)

    def gather(self, rank: int, part: torch.Tensor) -> Tensors:
        """Return what each rank gave, in their order. Called in a thread."""
        answer = Answer[Tensors]()
        self._loop.call_soon_threadsafe(self._give, rank, part.clone(), answer)
        return [one.clone() for one in answer.result(THREAD_SECONDS)]

    def lose(self, reason: str) -> None:
        """Have a rank do nothing any more."""
        self._lost = self._lost or reason
        self._patience.cancel()
        if not self.met.done():
            self.met.set_exception(RankLost(reason))
            self.met.exception()  # whether or not a task waits for it
        for _, answer in self._take():
            answer.set_exception(RankLost(f"a rank was lost: {self._lost}"))

    def _give(self, rank: int, part: torch.Tensor, answer: Answer[Tensors]) -> None:
        self._loop.in_threads -= 1
        self._given[rank] = part, answer
        if self._lost is not None:
            self.lose(self._lost)
        elif len(self._given) == self.size:
            self._patience.cancel()
            parts = [self._given[rank][0] for rank in range(self.size)]
            assert len({(one.shape, one.dtype) for one in parts}) == 1, "the ranks run different things"
            for _, answer in self._take():
                answer.set_result(parts)
        elif len(self._given) == 1:
            self._patience = self._loop.call_later(COLLECTIVE.total_seconds(), self.lose, "it is late")

    def _take(self) -> list[tuple[torch.Tensor, Answer[Tensors]]]:
        given, self._given = list(self._given.values()), {}
        self._loop.in_threads += len(given)
        return given


class Rank:
    """A process group, as the engine of one rank sees it."""

    device = CPU

    def __init__(self, group: Group, rank: int) -> None:
        self.size = group.size
        self._group = group
        self._rank = rank

    def gather(self, part: torch.Tensor) -> Tensors:
        return self._group.gather(self._rank, part)

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.copy_(self._group.gather(self._rank, tensor)[0])


class Meetings:
    """Groups by the port where they meet."""

    def __init__(self) -> None:
        self._groups: list[Group] = []

    def open(self, size: int) -> int:
        self._groups.append(Group(size))
        return len(self._groups) - 1

    def at(self, port: int) -> Group:
        return self._groups[port]


class RankRunner(TimedRunner):
    """Its thread has one job at a time, so that the clock is not held by jobs that wait for one that waits."""

    def __init__(self, told: WorkerSettings, meetings: Meetings, size: int) -> None:
        super().__init__(told.kv_bytes, told.block_size)
        self._meetings = meetings
        self._size = size
        self._group: Group | None = None
        self._jobs: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._running: asyncio.Future[Any] | None = None

    async def open_meeting(self, address: str) -> int:
        return self._meetings.open(self._size)

    async def meet(self, rank: int, size: int, address: str, at: Meeting) -> None:
        group = self._group = self._meetings.at(at.port)
        await group.join(rank)
        self._ranks = cast(ProcessGroup, Rank(group, rank))

    async def unload(self) -> None:
        await super().unload()
        self.leave()

    async def close(self) -> None:
        self.leave()
        for _, answer in self._jobs:
            answer.cancel()
        if self._running is not None:  # a thread is waited for without the loop, which this job may wait for
            await asyncio.wait((self._running,))
        await super().close()

    def leave(self) -> None:
        """Leave the group. The others know at once, as when sockets are closed."""
        if self._group is not None:
            self._group.lose("it left")
            self._group = None

    def export_kv(self, blocks: range, layers: int) -> asyncio.Future[View]:
        return self._ask(lambda: self._loaded().store.export_kv(blocks, range(layers)))

    async def compute(self, job: Callable[[], T]) -> T:
        return await self._ask(job)

    def _ask(self, job: Callable[[], T]) -> asyncio.Future[T]:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append((job, answer))
        self._next()
        return answer

    def _next(self) -> None:
        while self._jobs and self._running is None:
            job, answer = self._jobs.popleft()
            if not answer.cancelled():
                self._running = virtual_loop().run_in_thread(self._thread, job)
                self._running.add_done_callback(partial(self._ran, answer))

    def _ran(self, answer: asyncio.Future[Any], running: asyncio.Future[Any]) -> None:
        self._running = None
        error = running.exception()
        if not answer.cancelled():
            answer.set_result(running.result()) if error is None else answer.set_exception(error)
        self._next()
