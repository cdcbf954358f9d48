"""KV of requests that change hands between instances of several ranks, in a rank that is led.

Each rank has its own part of the heads, and gives it to the rank of the other instance that has the same shard.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace

import structlog

from livescale.services.worker.engine.contract import RankLost, Runner
from livescale.services.worker.live.handoff import KV, Channel, receive, send
from livescale.services.worker.scheduling.batch import Batch, KvImport
from livescale.shared.links.contract import Link, LinkError
from livescale.shared.messages.ranks import RankGive, RankKeep, RankTake

log = structlog.get_logger()


class RankKv:
    """What came and is not laid down; what is being sent."""

    def __init__(self, link: Link, runner: Runner, tasks: asyncio.TaskGroup) -> None:
        self._link = link
        self._runner = runner
        self._tasks = tasks
        self._late: dict[str, tuple[RankTake, memoryview]] = {}  # by request
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
        """Have it here. Raises LinkError, also where it is not wanted any more."""
        patience = asyncio.timeout(None if self._is_wanted(command) else 0)
        self._coming[patience] = command
        try:
            async with patience:
                self._late[command.request_id] = command, await self._receive(command)
        except TimeoutError:
            raise LinkError("it is not wanted any more") from None
        finally:
            del self._coming[patience]

    def keep(self, command: RankKeep) -> None:
        """Receive, and have, nothing that is not wanted."""
        self._keep = command
        self._late = {id: (take, kv) for id, (take, kv) in self._late.items() if self._is_wanted(take)}
        self._give_up(*(patience for patience, take in self._coming.items() if not self._is_wanted(take)))

    def lay_down(self, batch: Batch) -> Batch:
        """The same, with this rank's part of what is imported. Raises RankLost where it has none."""
        return replace(batch, imports=tuple(map(self._own, batch.imports)))

    async def end(self) -> None:
        """Nothing of it is wanted any more."""
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
        return replace(kv, data=data)

    def _is_wanted(self, take: RankTake) -> bool:
        return self._keep is None or take.after >= self._keep.step or take.request_id in self._keep.requests

    def _give_up(self, *coming: asyncio.Timeout) -> None:
        for patience in coming:
            if not patience.expired():
                patience.reschedule(asyncio.get_running_loop().time())

    async def _receive(self, command: RankTake) -> memoryview:
        peer = await Channel(self._link, command.sender, command.ticket, command.secret).connect()
        try:
            return await receive(peer, KV, command.size_bytes)
        finally:
            await peer.close()

    async def _send(self, command: RankGive, kv: asyncio.Future[memoryview]) -> None:
        channel = Channel(self._link, command.to, command.ticket, command.secret)
        try:
            async with channel.giving() as peer:
                await send(peer, KV, await kv)
        except (LinkError, RuntimeError, ValueError) as error:
            log.warning("rank_kv_not_sent", to=command.to.id, error=str(error))


async def refuse(link: Link, command: RankGive) -> None:
    """Nothing will be given: who waits for it learns that."""
    with suppress(LinkError):
        peer = await Channel(link, command.to, command.ticket, command.secret).connect()
        await peer.close()
