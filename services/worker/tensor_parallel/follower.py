"""A rank that is led: it runs what it is told, brings and forgets adapters, and says what it has."""

import asyncio
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import assert_never

import structlog

from livescale.services.worker.engine.contract import UNAVAILABLE, AdapterUnavailable, LayerwiseRun, RankLost, Runner
from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.scheduling.batch import NO_BYTES, Batch
from livescale.services.worker.tensor_parallel.kv import RankKv
from livescale.services.worker.tensor_parallel.wire import decode_batch
from livescale.shared.bus.contract import BusError, Refusal
from livescale.shared.messages.model_parallel import (
    AskMeeting,
    Meeting,
    RankAdapter,
    RankForget,
    RankGive,
    RankKeep,
    RankLeft,
    RankStep,
    RankTake,
    Told,
)
from livescale.shared.messages.transfers import Load
from livescale.shared.runtime.waiting import Changes, together
from livescale.shared.subjects import MEETING, RANK_LEFT

CALL_SECONDS = 2.0
MEET_SECONDS = 10.0  # within which the rank that leads has to be told of its instance
AGAIN_SECONDS = 0.1
WATCH_SECONDS = 1.0
LATE_SECONDS = 2.0  # after which a step that the leader has told is lost
LEFT_SECONDS = 10.0  # after which a leader that does not answer is dead, or waits for its ranks in vain itself
ADAPTER_SECONDS = 30.0  # for an adapter, and the steps before it

log = structlog.get_logger()


class RankAdapters:
    """Adapters in the engine of a rank, in the order of the steps that the leading rank tells."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._wanted: set[str] = set()
        self._ran = 0
        self._progress = Changes()

    def ran(self, step: int) -> None:
        """Note that all steps up to this one were run."""
        self._ran = step
        self._progress.tell()

    async def bring(self, ask: RankAdapter) -> None:
        """Return once an adapter is in the engine. Raises Refusal 503 where it does not come."""
        try:
            async with asyncio.timeout(ADAPTER_SECONDS):
                while self._ran < ask.after:
                    await self._progress.wait()
                self._wanted.add(ask.version)
                if ask.version not in self._runner.adapters:
                    await self._fetch(ask.version)
        except TimeoutError:
            raise Refusal(UNAVAILABLE, f"adapter {ask.version} did not come within {ADAPTER_SECONDS:g} s") from None

    async def forget(self, version: str) -> None:
        """Forget an adapter, also one that is on its way."""
        self._wanted.discard(version)
        await self._runner.remove_adapter(version)

    async def _fetch(self, version: str) -> None:
        if self._runner.fetch_adapter is None:
            raise Refusal(UNAVAILABLE, f"adapter {version}: this worker fetches none")
        try:
            adapter = await self._runner.fetch_adapter(version)
            if version in self._wanted:
                await self._runner.add_adapter(adapter)
        except (AdapterUnavailable, ValueError, RuntimeError) as error:
            raise Refusal(UNAVAILABLE, f"adapter {version}: {error}") from error
        if version not in self._wanted:
            raise Refusal(UNAVAILABLE, f"adapter {version} is not wanted any more")


class GroupFollower:
    """One rank of the instance that `command` loads, other than the first."""

    def __init__(self, context: WorkerContext, command: Load) -> None:
        self._bus = context.bus
        self._clock = context.clock
        self._runner = context.runner
        self._address = context.link.address
        self._kv = RankKv(context)
        self._adapters = RankAdapters(context.runner)
        self._command = command
        self._leader = command.ranks[0]
        self._blocks: list[int] = []
        self._news = asyncio.Event()
        self._steps = asyncio.Queue[Told]()
        self._early = dict[int, Told]()  # that came before earlier ones
        self._heard = self._awaited = 0
        self._awaited_since = 0.0

    @property
    def instance(self) -> str:
        return self._command.instance

    async def find_meeting(self) -> Meeting:
        """Return where the ranks meet. Raises RankLost where the rank that leads does not say it in time."""
        try:
            async with asyncio.timeout(MEET_SECONDS):
                while True:
                    try:
                        return await self._ask()
                    except BusError:  # it has not been told yet
                        await asyncio.sleep(AGAIN_SECONDS)
        except TimeoutError:
            raise RankLost(
                f"{self._leader} did not say at which address the ranks of {self._command.instance} meet"
            ) from None

    def have(self, blocks: AbstractSet[int]) -> None:
        """Note that these blocks are laid out, which the rank that leads is told."""
        self._blocks = sorted(blocks)
        self._news.set()

    def hear(self, step: Told) -> None:
        """Queue what the rank that leads has told, in the order in which it did."""
        if step.step > self._heard:  # else it has come twice
            self._early[step.step] = step
        while (next := self._early.pop(self._heard + 1, None)) is not None:
            self._heard += 1
            self._steps.put_nowait(next)

    async def take(self, take: RankTake) -> None:
        """Receive KV of a request that comes to the instance. Raises Refusal 503 where it does not come."""
        await self._kv.take(take)

    async def bring(self, ask: RankAdapter) -> None:
        """Have an adapter in the engine. Raises Refusal 503 where it does not come."""
        await self._adapters.bring(ask)

    async def run(self) -> None:
        """Run steps until this rank is led no more. Raises RankLost, and what the engine raises."""
        await together(self._run_steps(), self._watch())

    async def tell_left(self, reason: str) -> None:
        """Have the rank that leads know that this one runs no more steps: else it would wait for it at the next."""
        left = RankLeft(instance=self._command.instance, rank=self._command.rank, reason=reason)
        with suppress(TimeoutError):
            async with asyncio.timeout(LEFT_SECONDS):
                while True:
                    try:
                        await self._bus.call(RANK_LEFT, left, timeout=CALL_SECONDS, id=self._leader)
                    except Refusal:
                        return  # the instance has ended there, too
                    except BusError:
                        await asyncio.sleep(AGAIN_SECONDS)
                    else:
                        return

    async def end(self) -> list[RankGive]:
        """Clean up after `run`. Returns the orders to give KV that are left, which are not carried out."""
        await self._kv.end()
        left = [self._steps.get_nowait() for _ in range(self._steps.qsize())]
        return [step for step in left if isinstance(step, RankGive)]

    async def _run_steps(self) -> None:
        while True:
            step = await self._steps.get()
            match step:
                case RankStep():
                    await self._run(decode_batch(step.batch), step)
                case RankGive():
                    self._kv.give(step)
                case RankKeep():
                    self._kv.keep(step)
                case RankForget():
                    await self._adapters.forget(step.version)
                case other:
                    assert_never(other)
            self._adapters.ran(step.step)

    async def _run(self, batch: Batch, step: RankStep) -> None:
        if step.first is not None:
            await self._runner.run_blocks(range(step.first, step.stop), batch.chunks, NO_BYTES)
        elif step.layer is not None:
            await self._runner.run_layer([LayerwiseRun(batch.chunks, step.layer)])
        else:
            await self._runner.step(self._kv.lay_down(batch))

    async def _watch(self) -> None:
        """Report changes to the leading rank, and ask it regularly, as it may have given the instance up without a
        message, or the last of its steps may be lost. If the leader does not answer at all, its lease ends."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._news.wait()
            self._news.clear()
            try:
                told = (await self._ask()).told
            except Refusal as refusal:
                raise RankLost(f"{self._leader} does not lead {self._command.instance} any more: {refusal}") from None
            except BusError:
                log.debug("leader_not_reached", instance=self._command.instance, leader=self._leader)
            else:
                self._await_steps(told)

    def _await_steps(self, told: int) -> None:
        """Note that the leader has told so many steps by now. Raises RankLost where one of long ago has not come."""
        now = self._clock.now()
        if self._heard >= self._awaited:
            self._awaited, self._awaited_since = told, now
        elif now - self._awaited_since > LATE_SECONDS:
            raise RankLost(f"step {self._heard + 1} of {self._awaited} did not come")

    async def _ask(self) -> Meeting:
        ask = AskMeeting(
            instance=self._command.instance, rank=self._command.rank, address=self._address, blocks=self._blocks
        )
        return await self._bus.call(MEETING, ask, timeout=CALL_SECONDS, id=self._leader)
