"""A rank that is led: it runs what it is told, and says what it has.

Where requests change hands between two instances, each rank gives its part of the heads to the rank of the other
instance that has the same shard.
"""

import asyncio
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from typing import assert_never, cast

import structlog
from msgspec import structs

from livescale.services.worker.engine.contract import LayerwiseRun, RankLost
from livescale.services.worker.instance.context import WorkerContext
from livescale.services.worker.instance.handoff import KV, Channel, receive_into, send
from livescale.services.worker.scheduling.batch import NO_BYTES, Batch, KvImport
from livescale.services.worker.tensor_parallel.adapters import RankAdapters
from livescale.services.worker.tensor_parallel.wire import decode_batch
from livescale.shared.bus.contract import BusError, Refusal
from livescale.shared.links.contract import Link, LinkError, View
from livescale.shared.messages.ranks import (
    AskMeeting,
    Meeting,
    RankAdapter,
    RankForget,
    RankGive,
    RankKeep,
    RankStep,
    RankTake,
    Told,
)
from livescale.shared.messages.transfers import Load
from livescale.shared.runtime.waiting import together
from livescale.shared.subjects import MEETING

log = structlog.get_logger()


class RankKv:
    """KV that came to this rank and is not laid down, and KV that is being sent."""

    def __init__(self, context: WorkerContext) -> None:
        self._link = context.link
        self._runner = context.runner
        self._tasks = context.tasks
        self._late: dict[str, tuple[RankTake, View]] = {}  # by request
        self._coming: dict[asyncio.Timeout, RankTake] = {}
        self._keep: RankKeep | None = None  # the last one
        self._sending: set[asyncio.Task[None]] = set()

    def give(self, command: RankGive) -> None:
        """Send KV as it is after what the engine was asked for before."""
        blocks = range(command.first_block, command.first_block + command.blocks)
        kv = self._runner.export_kv(blocks, command.layers)
        sending = self._tasks.create_task(self._send(command, kv), name=f"KV for {command.to.id}")
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    async def take(self, command: RankTake) -> None:
        """Receive KV. Raises LinkError, also where it is not wanted any more."""
        patience = asyncio.timeout(None if self._is_wanted(command) else 0)
        self._coming[patience] = command
        try:
            async with patience:
                self._late[command.request_id] = command, await self._receive(command)
        except TimeoutError:
            raise LinkError("its leader does not want it any more") from None
        finally:
            del self._coming[patience]

    def keep(self, command: RankKeep) -> None:
        """Drop all KV that the leader does not want any more, and stop receiving it."""
        self._keep = command
        self._late = {id: (take, kv) for id, (take, kv) in self._late.items() if self._is_wanted(take)}
        self._give_up(*(patience for patience, take in self._coming.items() if not self._is_wanted(take)))

    def lay_down(self, batch: Batch) -> Batch:
        """Return the batch with this rank's part of what it imports. Raises RankLost where there is none."""
        return structs.replace(batch, imports=tuple(map(self._own, batch.imports)))

    async def end(self) -> None:
        """Drop all KV, and return once nothing is being sent."""
        self._late.clear()
        self._give_up(*self._coming)
        await asyncio.sleep(0)  # whatever is cancelled before it has begun would not close its channel
        for sending in self._sending:
            sending.cancel()
        if self._sending:
            await asyncio.wait(self._sending)

    def _own(self, kv: KvImport) -> KvImport:
        if kv.request_id not in self._late:
            raise RankLost(f"this rank has no KV of request {kv.request_id}")
        _, data = self._late.pop(kv.request_id)
        return replace(kv, data=cast("memoryview", data))  # only a modelled engine has other memory, and knows it

    def _is_wanted(self, take: RankTake) -> bool:
        return self._keep is None or take.after >= self._keep.step or take.request_id in self._keep.requests

    def _give_up(self, *coming: asyncio.Timeout) -> None:
        for patience in coming:
            if not patience.expired():
                patience.reschedule(asyncio.get_running_loop().time())

    async def _receive(self, command: RankTake) -> View:
        peer = await Channel(self._link, command.sender, command.ticket, command.secret).connect()
        try:
            kv = self._runner.new_memory(command.size_bytes)
            await receive_into(peer, KV, kv)
            return kv
        finally:
            await peer.close()

    async def _send(self, command: RankGive, kv: asyncio.Future[View]) -> None:
        channel = Channel(self._link, command.to, command.ticket, command.secret)
        try:
            async with channel.giving() as peer:
                await send(peer, KV, await kv)
        except (LinkError, RuntimeError, ValueError) as error:
            log.warning("rank_kv_not_sent", to=command.to.id, error=str(error))


async def refuse(link: Link, command: RankGive) -> None:
    """Tell the rank which waits for this KV that it will not be given."""
    with suppress(LinkError):
        peer = await Channel(link, command.to, command.ticket, command.secret).connect()
        await peer.close()


CALL_SECONDS = 2.0
MEET_SECONDS = 10.0  # within which the rank that leads has to be told of its instance
AGAIN_SECONDS = 0.1
WATCH_SECONDS = 1.0


class GroupFollower:
    """One rank of the instance that `command` loads, other than the first."""

    def __init__(self, context: WorkerContext, command: Load) -> None:
        self._bus = context.bus
        self._runner = context.runner
        self._address = context.link.address
        self._kv = RankKv(context)
        self._adapters = RankAdapters(context.runner)
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
        """Queue what the rank that leads has told."""
        self._steps.put_nowait(step)

    async def take(self, take: RankTake) -> None:
        """Receive KV of a request that comes to the instance. Raises Refusal 503 where it does not come."""
        try:
            await self._kv.take(take)
        except LinkError as error:
            raise Refusal(503, f"KV of request {take.request_id} did not come: {error}") from error

    async def bring(self, ask: RankAdapter) -> None:
        """Have an adapter in the engine. Raises Refusal 503 where it does not come."""
        await self._adapters.bring(ask)

    async def run(self) -> None:
        """Run steps until this rank is led no more. Raises RankLost, and what the engine raises."""
        await together(self._run_steps(), self._watch())

    async def end(self) -> list[RankGive]:
        """Clean up after `run`. Returns the orders to give KV that are left, which are not carried out."""
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
                case RankForget():
                    await self._adapters.forget(step.version)
                case other:
                    assert_never(other)
            self._ran = step.step
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
        message. If the leader does not answer at all, its lease ends."""
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
