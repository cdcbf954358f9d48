"""KV of requests that change hands between two instances of several ranks.

Each rank gives its part of the heads to the rank of the other instance that has the same shard.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import cast

import structlog
from msgspec import structs

from livescale.services.worker.engine.contract import RankLost
from livescale.services.worker.instance.context import KV, Channel, WorkerContext, receive_into, send
from livescale.services.worker.scheduling.batch import Batch, KvImport
from livescale.shared.bus.contract import Refusal
from livescale.shared.links.contract import Link, LinkError, View
from livescale.shared.messages.model_parallel import RankGive, RankKeep, RankTake

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
        """Receive KV. Raises Refusal 503 where it does not come, or is not wanted any more."""
        patience = asyncio.timeout(None if self._is_wanted(command) else 0)
        self._coming[patience] = command
        try:
            async with patience:
                self._late[command.request_id] = command, await self._receive(command)
        except TimeoutError:
            raise _not_come(command, "its leader does not want it any more") from None
        except LinkError as error:
            raise _not_come(command, str(error)) from error
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


def _not_come(command: RankTake, reason: str) -> Refusal:
    return Refusal(503, f"KV of request {command.request_id} did not come: {reason}")
