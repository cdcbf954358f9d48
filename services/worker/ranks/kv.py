"""KV of requests that change hands between instances of several ranks, in a rank that is led.

Each rank has its own part of the heads, and gives it to the rank of the other instance that has the same shard.
"""

import asyncio
from dataclasses import replace

import structlog

from services.worker.batch import Batch, KvImport
from services.worker.engine.contract import RankLost, Runner
from services.worker.live.handoff import KV, Channel, receive, send
from shared.links.contract import Link, LinkError
from shared.messages.ranks import RankGive, RankTake

log = structlog.get_logger()


class RankKv:
    """What came and is not laid down; what is being sent."""

    def __init__(self, link: Link, runner: Runner, tasks: asyncio.TaskGroup) -> None:
        self._link = link
        self._runner = runner
        self._tasks = tasks
        self._late: dict[str, memoryview] = {}  # by request
        self._sending: set[asyncio.Task[None]] = set()

    def give(self, command: RankGive) -> None:
        """Send KV as it is after what the engine was asked for before."""
        blocks = range(command.first_block, command.first_block + command.blocks)
        kv = self._runner.export_kv(blocks, command.layers)
        sending = self._tasks.create_task(self._send(command, kv), name=f"KV for {command.to.id}")
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)

    async def take(self, command: RankTake, *, all_ran: bool) -> None:
        """Have it here. Raises LinkError. `all_ran`: what is not awaited then, nobody lays down any more."""
        if all_ran:
            self._late = {id: kv for id, kv in self._late.items() if id in command.awaited}
        peer = await Channel(self._link, command.sender, command.ticket, command.secret).connect()
        try:
            self._late[command.request_id] = await receive(peer, KV, command.size_bytes)
        finally:
            await peer.close()

    def lay_down(self, batch: Batch) -> Batch:
        """The same, with this rank's part of what is imported. Raises RankLost where it has none."""
        return replace(batch, imports=tuple(map(self._own, batch.imports)))

    async def end(self) -> None:
        """Nothing of it is wanted any more."""
        self._late.clear()
        for sending in self._sending:
            sending.cancel()
        if self._sending:
            await asyncio.wait(self._sending)

    def _own(self, kv: KvImport) -> KvImport:
        data = self._late.pop(kv.request_id, None)
        if data is None:
            raise RankLost(f"this rank has no KV of request {kv.request_id}")
        return replace(kv, data=data)

    async def _send(self, command: RankGive, kv: asyncio.Future[memoryview]) -> None:
        channel = Channel(self._link, command.to, command.ticket, command.secret)
        try:
            async with channel.giving() as peer:
                await send(peer, KV, await kv)
        except (LinkError, RuntimeError, ValueError) as error:
            log.warning("rank_kv_not_sent", to=command.to.id, error=str(error))
