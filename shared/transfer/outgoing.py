"""What a node sends for plans: one task a plan, counted, ended by the plan's abort."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from shared.links.contract import Link
from shared.messages.scaling import Send
from shared.transfer.part import Part, TransferFailed
from shared.transfer.ready import BlocksLost, ReadyBlocks
from shared.transfer.send import send_blocks

log = structlog.get_logger()


class Outgoing:
    """Sends under way. `on_change` is called whenever their number changed."""

    def __init__(self, node: str, link: Link, tasks: asyncio.TaskGroup, on_change: Callable[[], None]) -> None:
        self._node = node
        self._link = link
        self._tasks = tasks
        self._on_change = on_change
        self._sends: dict[str, asyncio.Task[None]] = {}
        self.none = asyncio.Event()
        self.none.set()

    def __len__(self) -> int:
        return len(self._sends)

    def start(self, command: Send, memory: Sequence[memoryview], ready: ReadyBlocks) -> None:
        """Send the blocks in `memory` to the command's children, each block once it is ready. Told again: nothing."""
        if command.plan_id in self._sends:
            return
        part = Part(self._node, command.ticket, command.chunk_bytes, memory, command.downstream)
        self._sends[command.plan_id] = self._tasks.create_task(self._send(command, part, ready))
        self.none.clear()
        self._on_change()

    def abort(self, plan_id: str) -> None:
        """End the sends of a plan. Idempotent."""
        send = self._sends.get(plan_id)
        if send is not None:
            send.cancel()

    def abort_all(self) -> None:
        for plan_id in list(self._sends):
            self.abort(plan_id)

    async def _send(self, command: Send, part: Part, ready: ReadyBlocks) -> None:
        try:
            await send_blocks(self._link, part, ready.wait_ready)
            log.info("blocks_sent", plan=command.plan_id, to=[node.id for node in command.downstream])
        except (TransferFailed, BlocksLost) as error:
            # The receiver tells the planner; a source only stops.
            log.warning("send_failed", plan=command.plan_id, error=str(error))
        finally:
            del self._sends[command.plan_id]
            if not self._sends:
                self.none.set()
            self._on_change()
