"""A version on its way into the host cache: over the link from other holders, and from disk where no holder is left."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Executor

import structlog

from livescale.shared.links.contract import Link
from livescale.shared.links.link_path import LinkPath
from livescale.shared.links.meter import Paths
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.registry import FetchModel
from livescale.shared.transfer.flow_end import ModelCopy, TransferFailed
from livescale.shared.transfer.receiver import BlockReceiver, Events

PATIENCE_SECONDS = 10.0  # seconds without a flow after which the registry names another sender

log = structlog.get_logger()

OnBlock = Callable[[int], None]
ReadBlocks = Callable[[FetchModel, Mapping[int, memoryview], OnBlock], Awaitable[None]]


class ModelFetch:
    """Receives what a `FetchModel` commands, and what later ones for the same plan change about it.

    `lost` is called with plan and ticket of each flow that was lost, `moved` with path and bytes of what arrives.
    `read` reads blocks from disk.
    """

    def __init__(
        self,
        node: str,
        link: Link,
        command: FetchModel,
        hashing: Executor,
        lost: Callable[[str, int, TransferFailed], None],
        read: ReadBlocks,
        moved: Callable[[LinkPath, int], None] = lambda path, size_bytes: None,
    ) -> None:
        self._node = node
        self._link = link
        self._command = command
        self._hashing = hashing
        self._lost = lost
        self._read = read
        self._moved = moved
        self._incoming: BlockReceiver | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._giving_up: asyncio.TimerHandle | None = None

    def go_on(self, command: FetchModel) -> None:
        """Keep the blocks that are here and receive the rest along the command's flows; without flows, from disk.

        An earlier command that comes again changes nothing. Raises ValueError for another plan, or for flows that do
        not fit the blocks.
        """
        if (command.plan_id, command.chunk_bytes) != (self._command.plan_id, self._command.chunk_bytes):
            raise ValueError(f"the model is already being fetched for plan {self._command.plan_id}")
        if self._incoming is not None and not self._incoming.follow(command.inflows, command.secret):
            return  # it came before the last one, too
        self._command = command
        self._wait_no_more()
        if self._receiving is not None and not command.inflows:
            self._receiving.cancel()

    async def fill(self, blocks: list[memoryview], on_block: OnBlock) -> Manifest:
        """Fill `blocks`, and return the manifest once every block is here and verified.

        Raises ValueError for flows that do not fit the blocks, CheckpointError and OSError where the disk lacks some.
        """
        here = await self._receive(blocks, on_block) if self._command.inflows else ()
        missing = {index: block for index, block in enumerate(blocks) if index not in here}
        if missing:
            log.info("fetch_goes_on_from_disk", model=self._command.spec.name, blocks=len(missing))
            await self._read(self._command, missing, on_block)
        return self._command.manifest

    async def _receive(self, blocks: list[memoryview], on_block: OnBlock) -> Collection[int]:
        """Receive until all blocks are here or no sender is left. Returns the indexes of those that came."""
        command = self._command
        part = ModelCopy(self._node, command.chunk_bytes, blocks)
        events = Events(lambda: None, on_block, self._broken, Paths().note, self._moved)
        try:
            async with asyncio.TaskGroup() as tasks:
                incoming = BlockReceiver(self._link, part, command.manifest.blocks, self._hashing, events, tasks)
                self._receiving = tasks.create_task(incoming.run())
                incoming.follow(command.inflows, command.secret)
                self._incoming = incoming
        except ExceptionGroup as group:
            failure = group.exceptions[0]
            if not isinstance(failure, TransferFailed):
                raise failure from None
            log.warning("fetch_failed", model=command.spec.name, error=str(failure))
        finally:
            self._incoming = self._receiving = None
            self._wait_no_more()
        return incoming.arrivals.verified

    def _broken(self, ticket: int, failure: TransferFailed) -> None:
        assert self._receiving is not None
        self._wait_no_more()
        self._giving_up = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._receiving.cancel)
        self._lost(self._command.plan_id, ticket, failure)

    def _wait_no_more(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
