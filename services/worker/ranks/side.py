"""An instance of several workers, in one of them: the ranks meet, and take the same steps until one of them is lost."""

import asyncio
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import structlog

from services.worker.batch import Batch
from services.worker.engine.contract import RankLost, Runner
from services.worker.engine.partial import Partial
from services.worker.ranks.wire import decode_batch, encode_batch
from shared.bus.contract import BusError, Context, Refusal
from shared.messages.ranks import AskMeeting, Meeting, RankReady, RankStep
from shared.messages.transfers import Load
from shared.process import World
from shared.subjects import MEETING, RANK_READY, RANK_STEP
from shared.transfer.part import together

CALL_SECONDS = 2.0
MEET_SECONDS = 10.0  # within which the rank that leads has to be told of its instance
AGAIN_SECONDS = 0.1
WATCH_SECONDS = 1.0

log = structlog.get_logger()


@dataclass(frozen=True)
class RanksTold:
    """`ready`: another rank has more blocks; `lost`: why this one cannot go on."""

    ready: Callable[[], None]
    lost: Callable[[str], None]


class TensorParallel:
    """One instance at a time. The others reach this rank at `address`; what they say comes to `told`."""

    def __init__(self, world: World, runner: Runner, address: str, tasks: asyncio.TaskGroup, told: RanksTold) -> None:
        self._bus = world.bus
        self._runner = runner
        self._address = address
        self._tasks = tasks
        self._on_ready, self._on_lost = told.ready, told.lost
        self._command: Load | None = None
        self._meeting: Meeting | None = None  # of who leads
        self._here: list[int] = []  # blocks, where this rank is led
        self._elsewhere: dict[int, AbstractSet[int]] = {}  # blocks of each rank that this one leads
        self._told = 0
        self._steps = asyncio.Queue[RankStep]()
        self._following: asyncio.Task[None] | None = None

    async def meet(self, command: Load) -> None:
        """Return once all ranks are there; at once where there is but one. Raises RankLost."""
        if not command.ranks:
            return
        self._command, self._told, self._steps = command, 0, asyncio.Queue()
        if command.rank == 0:
            self._elsewhere = dict.fromkeys(range(1, len(command.ranks)), frozenset())
            port = await self._runner.open_meeting(self._address)
            at = self._meeting = Meeting(address=self._address, port=port)
        else:
            at = await self._find_meeting(command)
        await self._runner.meet(command.rank, len(command.ranks), self._address, at)
        log.info("ranks_met", instance=command.instance, rank=command.rank, ranks=command.ranks)
        if command.rank > 0:
            self._following = self._tasks.create_task(self._follow(command), name=f"rank of {command.instance}")

    async def where(self, ask: AskMeeting, context: Context) -> Meeting:
        """Asked of the rank that leads."""
        if self._meeting is None or self._command is None or self._command.instance != ask.instance:
            raise Refusal(409, f"instance: {ask.instance} is not led here")
        return self._meeting

    def everywhere(self, own: AbstractSet[int]) -> AbstractSet[int]:
        """Of this rank's blocks those that all others have too, if it leads any."""
        return frozenset(own).intersection(*self._elsewhere.values())

    def have(self, blocks: AbstractSet[int]) -> None:
        """These are laid out here. A layer runs once the slowest rank has it."""
        self._here = sorted(blocks)
        self._tell_ready()

    def hear_ready(self, ready: RankReady) -> None:
        """What a rank tells the one that leads."""
        if self._command is not None and self._command.instance == ready.instance and ready.rank in self._elsewhere:
            self._elsewhere[ready.rank] = frozenset(ready.blocks)
            self._on_ready()

    def whole(self, instance: str) -> None:
        """Each rank has everything: the planner knows."""
        if self._command is not None and self._command.instance == instance and self._elsewhere:
            self._elsewhere = {}
            self._on_ready()

    def tell(self, batch: Batch) -> None:
        """This rank is going to run it: so do the others, if it leads any."""
        self._tell_step(batch, None)

    def tell_layer(self, partials: Sequence[Partial]) -> None:
        """This rank is going to run the next layer of these."""
        pieces = tuple(piece for partial in partials for piece in partial.pieces)
        self._tell_step(Batch(0, pieces), partials[0].done)

    def _tell_step(self, batch: Batch, layer: int | None) -> None:
        if self._meeting is None or self._command is None:
            return
        self._told += 1
        step = RankStep(instance=self._command.instance, step=self._told, batch=encode_batch(batch), layer=layer)
        for worker in self._command.ranks[1:]:
            self._bus.publish(RANK_STEP, step, id=worker)

    def hear(self, step: RankStep) -> None:
        """What the rank that leads tells."""
        if self._command is not None and self._command.instance == step.instance:
            self._steps.put_nowait(step)

    def lost(self, worker: str) -> None:
        """The registry has declared it dead."""
        if self._command is not None and worker in self._command.ranks:
            self._stop()
            self._on_lost(f"{worker} is gone, and {self._command.instance} is nothing without it")

    async def led(self) -> None:
        """Return once no rank leads this one any more."""
        if self._following is not None:
            await asyncio.wait([self._following])

    async def end(self) -> None:
        """Whoever follows learns it by asking."""
        self._command = self._meeting = None
        self._elsewhere, self._here = {}, []
        self._stop()
        await self.led()
        self._following = None

    def _stop(self) -> None:
        if self._following is not None:
            self._following.cancel()

    async def _find_meeting(self, command: Load) -> Meeting:
        leader = command.ranks[0]
        try:
            async with asyncio.timeout(MEET_SECONDS):
                while True:
                    try:
                        return await self._ask(command)
                    except BusError:  # it has not been told yet
                        await asyncio.sleep(AGAIN_SECONDS)
        except TimeoutError:
            raise RankLost(f"{leader} did not say where {command.instance} meets") from None

    async def _ask(self, command: Load) -> Meeting:
        ask = AskMeeting(instance=command.instance)
        return await self._bus.call(MEETING, ask, timeout=CALL_SECONDS, id=command.ranks[0])

    async def _follow(self, command: Load) -> None:
        try:
            await together(self._run_steps(), self._watch(command))
        except (RuntimeError, ValueError, MemoryError) as error:
            reason = str(error) or type(error).__name__
            log.info("rank_not_led", instance=command.instance, reason=reason)
            self._on_lost(reason)

    async def _run_steps(self) -> None:
        ran = 0
        while True:
            step = await self._steps.get()
            if step.step != ran + 1:
                raise RankLost(f"step {step.step} came after step {ran}")
            ran = step.step
            await self._run(decode_batch(step.batch), step.layer)

    async def _run(self, batch: Batch, layer: int | None) -> None:
        if layer is None:
            await self._runner.step(batch)
        else:
            await self._runner.run_layer([Partial(batch.pieces, layer)])

    def _tell_ready(self) -> None:
        command = self._command
        if command is not None and command.rank > 0 and command.live != "off":
            ready = RankReady(instance=command.instance, rank=command.rank, blocks=self._here)
            self._bus.publish(RANK_READY, ready, id=command.ranks[0])

    async def _watch(self, command: Load) -> None:
        """Who leads may have given the instance up without a word; of one that says nothing leases tell."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self._tell_ready()  # what was said while the bus was away is lost
            try:
                await self._ask(command)
            except Refusal as refusal:
                raise RankLost(f"{command.ranks[0]} does not lead {command.instance} any more: {refusal}") from None
            except BusError:
                log.debug("leader_not_reached", instance=command.instance, leader=command.ranks[0])
