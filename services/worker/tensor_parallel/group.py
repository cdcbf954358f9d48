"""An instance of several workers, in one of them: the ranks meet, and take the same steps until one of them is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from livescale.services.worker.engine.contract import LayerwiseRun, RankLost, StageResult
from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.scheduling.batch import ScheduledChunk
from livescale.services.worker.tensor_parallel.follower import GroupFollower
from livescale.services.worker.tensor_parallel.kv import refuse
from livescale.services.worker.tensor_parallel.leader import GroupLeader
from livescale.shared.bus.contract import Ack, Context, Refusal
from livescale.shared.messages.model_parallel import (
    AskMeeting,
    Meeting,
    RankAdapter,
    RankGive,
    RankLeft,
    RankTake,
    Told,
)
from livescale.shared.messages.transfers import Load

log = structlog.get_logger()


BringAdapters = Callable[[AbstractSet[str]], Awaitable[None]]


async def _nothing_to_bring(versions: AbstractSet[str]) -> None: ...


@dataclass(frozen=True)
class GroupCallbacks:
    """What is called when another rank has more blocks (`ready`), and when this rank cannot go on, and why (`lost`)."""

    ready: Callable[[], None]
    lost: Callable[[str], None]


class TensorParallelGroup:
    """The ranks of one instance at a time, seen from one of them, which the others reach at `address`.

    `leader` tells the ranks that this one leads what to run. It leads none unless it is rank 0 of several.
    """

    def __init__(self, context: WorkerContext, address: str, callbacks: GroupCallbacks) -> None:
        self.leader = GroupLeader(context.bus)
        self.bring_adapters: BringAdapters = _nothing_to_bring
        self._context = context
        self._bus = context.bus
        self._runner = context.runner
        self._address = address
        self._callbacks = callbacks
        self._command: Load | None = None
        self._meeting: Meeting | None = None  # of the leading rank
        self._follower: GroupFollower | None = None
        self._following: asyncio.Task[None] | None = None

    async def meet(self, command: Load) -> None:
        """Return once all ranks are there; at once where there is but one. Raises RankLost."""
        if not command.ranks:
            return
        self._command, follower = command, None
        if command.rank == 0:
            self.leader = GroupLeader(self._bus, command.instance, command.ranks[1:])
            self.leader.on_left = self._callbacks.lost
            port = await self._runner.open_meeting(self._address)
            at = self._meeting = Meeting(address=self._address, port=port)
        else:
            follower = self._follower = GroupFollower(self._context, command)
            at = await follower.find_meeting()
        await self._runner.meet(command.rank, len(command.ranks), self._address, at)
        log.info("ranks_met", instance=command.instance, rank=command.rank, ranks=command.ranks)
        if follower is not None:
            self._following = self._context.tasks.create_task(
                self._follow(follower), name=f"rank of {command.instance}"
            )

    async def run_layer(self, partials: Sequence[LayerwiseRun]) -> None:
        """Run the next layer of these on all ranks. Raises what the engine raises, RankLost among it."""
        await self._bring(piece for partial in partials for piece in partial.chunks)
        self.leader.tell_layer(partials)
        await self._runner.run_layer(partials)

    async def run_blocks(self, blocks: range, pieces: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
        """Run these blocks of the model on all ranks. Raises what the engine raises; RankLost ends the instance."""
        await self._bring(pieces)
        self.leader.tell_blocks(blocks, pieces)
        try:
            return await self._runner.run_blocks(blocks, pieces, activation)
        except RankLost as error:
            self._callbacks.lost(str(error))
            raise

    async def where(self, ask: AskMeeting, context: Context) -> Meeting:
        """Answer MEETING, as the rank that leads: where the ranks meet. Raises Refusal 409 for another instance."""
        if self._meeting is None or self.leader.instance != ask.instance:
            raise Refusal(409, f"instance: {ask.instance} is not led here")
        self.leader.asked(ask)
        self._callbacks.ready()
        return replace(self._meeting, told=self.leader.told)

    def have(self, blocks: AbstractSet[int]) -> None:
        """Note that these blocks are laid out here."""
        if self._follower is not None:
            self._follower.have(blocks)

    def whole(self, instance: str) -> None:
        """Note that each rank has everything, as the planner says."""
        self.leader.whole(instance)
        self._callbacks.ready()

    def hear(self, step: Told) -> None:
        """Take what the rank that leads has told this one."""
        if self._follower is not None and self._follower.instance == step.instance:
            self._follower.hear(step)
        elif isinstance(step, RankGive):
            self._refuse(step)

    async def take(self, take: RankTake, context: Context) -> Ack:
        """Answer RANK_TAKE: receive KV that the rank that leads wants to be here. Raises Refusal."""
        if self._follower is None or self._follower.instance != take.instance:
            raise Refusal(409, f"instance: this worker is no rank of {take.instance}")
        await self._follower.take(take)
        return Ack()

    async def bring(self, ask: RankAdapter, context: Context) -> Ack:
        """Answer RANK_ADAPTER: have an adapter that the rank that leads is going to use. Raises Refusal."""
        if self._follower is None or self._follower.instance != ask.instance:
            raise Refusal(409, f"instance: this worker is no rank of {ask.instance}")
        await self._follower.bring(ask)
        return Ack()

    def lost(self, worker: str) -> None:
        """End the instance if this dead worker is one of its ranks."""
        if self._command is not None and worker in self._command.ranks:
            self._stop()
            self._callbacks.lost(f"{worker} is gone, and {self._command.instance} is nothing without it")

    async def left(self, told: RankLeft, context: Context) -> Ack:
        """Answer RANK_LEFT: end the instance, which is led here. Raises Refusal 409 for another one."""
        if self.leader.instance != told.instance:
            raise Refusal(409, f"instance: {told.instance} is not led here")
        self._callbacks.lost(f"rank {told.rank} of {told.instance} has left: {told.reason}")
        return Ack()

    async def led(self) -> None:
        """Return once no rank leads this one any more."""
        if self._following is not None:
            await asyncio.wait([self._following])

    async def end(self) -> None:
        """Leave the instance. The ranks that follow learn it when they next ask."""
        self.leader.end()
        self.leader, self._command, self._meeting = GroupLeader(self._bus), None, None
        self._stop()
        await self.led()
        self._following, follower, self._follower = None, self._follower, None
        if follower is not None:
            for give in await follower.end():
                self._refuse(give)

    async def _bring(self, pieces: Iterable[ScheduledChunk]) -> None:
        """Have the adapters of these on all ranks before they are told to run them: a rank that fetched one meanwhile
        would count as lost."""
        if self.leader.size > 1:
            await self.bring_adapters({piece.adapter for piece in pieces if piece.adapter is not None})

    def _refuse(self, give: RankGive) -> None:
        self._context.tasks.create_task(refuse(self._context.link, give), name=f"no KV for {give.to.id}")

    def _stop(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def _follow(self, follower: GroupFollower) -> None:
        try:
            await follower.run()
        except (RuntimeError, ValueError, MemoryError) as error:
            reason = str(error) or type(error).__name__
            log.info("rank_not_led", reason=reason)
            self._context.start(follower.tell_left(reason), f"rank of {follower.instance} has left")
            self._callbacks.lost(reason)
