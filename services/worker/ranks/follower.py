"""A rank that is led: it runs what it is told, and says what it has."""

import asyncio
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import assert_never

import structlog

from livescale.services.worker.batch import NO_BYTES, Batch
from livescale.services.worker.engine.contract import RankLost, Runner
from livescale.services.worker.engine.partial import Partial
from livescale.services.worker.ranks.kv import RankKv
from livescale.services.worker.ranks.wire import decode_batch
from livescale.shared.bus.contract import Bus, BusError, Refusal
from livescale.shared.links.contract import Link, LinkError
from livescale.shared.messages.ranks import AskMeeting, Meeting, RankGive, RankKeep, RankStep, RankTake, Told
from livescale.shared.messages.transfers import Load
from livescale.shared.subjects import MEETING
from livescale.shared.transfer.flow_end import together

CALL_SECONDS = 2.0
MEET_SECONDS = 10.0  # within which the rank that leads has to be told of its instance
AGAIN_SECONDS = 0.1
WATCH_SECONDS = 1.0

log = structlog.get_logger()


class Follower:
    """Of the instance of this LOAD."""

    def __init__(self, bus: Bus, runner: Runner, link: Link, tasks: asyncio.TaskGroup, command: Load) -> None:
        self._bus = bus
        self._runner = runner
        self._address = link.address
        self._kv = RankKv(link, runner, tasks)
        self._command = command
        self._leader = command.ranks[0]
        self._blocks: list[int] = []
        self._news = asyncio.Event()
        self._steps = asyncio.Queue[Told]()
        self._ran = 0

    @property
    def instance(self) -> str:
        return self._command.instance

    async def find_meeting(self) -> Meeting:
        """Raises RankLost where the rank that leads does not say where it is."""
        try:
            async with asyncio.timeout(MEET_SECONDS):
                while True:
                    try:
                        return await self._ask()
                    except BusError:  # it has not been told yet
                        await asyncio.sleep(AGAIN_SECONDS)
        except TimeoutError:
            raise RankLost(f"{self._leader} did not say where {self._command.instance} meets") from None

    def have(self, blocks: AbstractSet[int]) -> None:
        """These are laid out."""
        self._blocks = sorted(blocks)
        self._news.set()

    def hear(self, step: Told) -> None:
        """What the rank that leads tells."""
        self._steps.put_nowait(step)

    async def take(self, take: RankTake) -> None:
        """Have KV here. Raises Refusal."""
        try:
            await self._kv.take(take)
        except LinkError as error:
            raise Refusal(503, f"KV of request {take.request_id} did not come: {error}") from error

    async def run(self) -> None:
        """Until nobody leads. Raises RankLost, and what the engine raises."""
        await together(self._run_steps(), self._watch())

    async def end(self) -> list[RankGive]:
        """After `run`: nothing is left of it. What is not given."""
        await self._kv.end()
        left = [self._steps.get_nowait() for _ in range(self._steps.qsize())]
        return [step for step in left if isinstance(step, RankGive)]

    async def _run_steps(self) -> None:
        while True:
            step = await self._steps.get()
            if step.step != self._ran + 1:
                raise RankLost(f"step {step.step} came after step {self._ran}")
            match step:
                case RankStep():
                    await self._run(decode_batch(step.batch), step)
                case RankGive():
                    self._kv.give(step)
                case RankKeep():
                    self._kv.keep(step)
                case other:
                    assert_never(other)
            self._ran = step.step

    async def _run(self, batch: Batch, step: RankStep) -> None:
        if step.first is not None:
            await self._runner.run_blocks(range(step.first, step.stop), batch.pieces, NO_BYTES)
        elif step.layer is not None:
            await self._runner.run_layer([Partial(batch.pieces, step.layer)])
        else:
            await self._runner.step(self._kv.lay_down(batch))

    async def _watch(self) -> None:
        """Say what is new, and ask in any case: who leads may have given the instance up without a word. Of one that
        says nothing leases tell."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._news.wait()
            self._news.clear()
            try:
                await self._ask()
            except Refusal as refusal:
                raise RankLost(f"{self._leader} does not lead {self._command.instance} any more: {refusal}") from None
            except BusError:
                log.debug("leader_not_reached", instance=self._command.instance, leader=self._leader)

    async def _ask(self) -> Meeting:
        ask = AskMeeting(
            instance=self._command.instance, rank=self._command.rank, address=self._address, blocks=self._blocks
        )
        return await self._bus.call(MEETING, ask, timeout=CALL_SECONDS, id=self._leader)
