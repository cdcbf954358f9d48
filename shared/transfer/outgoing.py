"""What a node sends for plans: one task a ticket, counted, ended by the plan's abort."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from shared.bus.contract import Refusal
from shared.links.contract import Link
from shared.messages.scaling import Send
from shared.transfer.part import Part, TransferFailed
from shared.transfer.ready import BlocksLost, ReadyBlocks
from shared.transfer.send import send_blocks

log = structlog.get_logger()


class Outgoing:
    """Sends under way, by plan and ticket. `on_change` is called whenever their number changed."""

    def __init__(self, node: str, link: Link, tasks: asyncio.TaskGroup, on_change: Callable[[], None]) -> None:
        self._node = node
        self._link = link
        self._tasks = tasks
        self._on_change = on_change
        self._sends: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.none = asyncio.Event()
        self.none.set()

    def __len__(self) -> int:
        return len(self._sends)

    def start(self, command: Send, memory: Sequence[memoryview], ready: ReadyBlocks) -> None:
        """Send the blocks in `memory` to the command's children, each block once it is ready. Told again: nothing.

        Raises Refusal 400 where the command's ticket or chunks do not fit these blocks.
        """
        key = command.plan_id, command.ticket
        if key in self._sends:
            return
        part = self._part(command, memory)
        send = self._sends[key] = self._tasks.create_task(self._send(command, part, ready))
        send.add_done_callback(lambda _: self._ended(key))  # also when it is cancelled before its first step
        self.none.clear()
        self._on_change()

    def _part(self, command: Send, memory: Sequence[memoryview]) -> Part:
        downstream, secret = command.downstream, command.secret
        try:
            return Part(self._node, command.ticket, command.chunk_bytes, memory, downstream, secret=secret)
        except ValueError as error:
            raise Refusal(400, f"plan {command.plan_id}: {error}") from None

    def abort(self, plan_id: str) -> None:
        """End the sends of a plan. Idempotent."""
        for (plan, _), send in self._sends.items():
            if plan == plan_id:
                send.cancel()

    def abort_all(self) -> None:
        for send in self._sends.values():
            send.cancel()

    async def _send(self, command: Send, part: Part, ready: ReadyBlocks) -> None:
        try:
            await send_blocks(self._link, part, ready.wait_ready)
            log.info("blocks_sent", plan=command.plan_id, to=[node.id for node in command.downstream])
        except (TransferFailed, BlocksLost) as error:
            # The receiver tells the planner; a source only stops.
            log.warning("send_failed", plan=command.plan_id, error=str(error))

    def _ended(self, key: tuple[str, int]) -> None:
        del self._sends[key]
        if not self._sends:
            self.none.set()
        self._on_change()
