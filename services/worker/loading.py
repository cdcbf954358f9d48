"""Parameters on their way into a worker: received, forwarded, verified, and laid out for the kernels at once."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

import structlog

from services.worker.engine.runner import EngineRunner
from shared.links.contract import Link
from shared.messages.parameters import Manifest
from shared.messages.scaling import BlockReady, Load, Transfer, TransferState
from shared.process import World
from shared.subjects import BLOCK, TRANSFER
from shared.transfer.part import Part, TransferFailed, together
from shared.transfer.ready import ReadyBlocks
from shared.transfer.receive import receive_blocks

log = structlog.get_logger()


class Loading:
    """One LOAD. `ready` is what may be sent on to others; `on_block` tells that a layer may run."""

    def __init__(
        self,
        worker: str,
        command: Load,
        memory: list[memoryview],
        world: World,
        runner: EngineRunner,
        on_block: Callable[[str, int], None],
    ) -> None:
        self.command = command
        self.memory = memory
        self.ready = ReadyBlocks()
        self.kv_blocks = 0
        self._worker = worker
        self._bus = world.bus
        self._clock = world.clock
        self._runner = runner
        self._on_block = on_block
        self._first_byte_at: float | None = None
        self._laid_out = 0
        self._verified: asyncio.Queue[int] = asyncio.Queue()

    @property
    def manifest(self) -> Manifest:
        return self.command.manifest

    async def run(self, link: Link, executor: Executor) -> bool:
        """Whether every block came and was passed on. Failures are told to the planner, not raised."""
        try:
            await together(self._receive(link, executor), self._lay_out())
        except (TransferFailed, ValueError, RuntimeError, MemoryError) as error:
            log.warning("load_failed", plan=self.command.plan_id, error=str(error))
            self.ready.lose(str(error))
            self._tell("failed", error=str(error))
            return False
        return True

    async def _receive(self, link: Link, executor: Executor) -> None:
        command = self.command
        await receive_blocks(
            link,
            Part(self._worker, command.ticket, command.chunk_bytes, self.memory, command.downstream),
            command.upstream,
            self.manifest.blocks,
            executor,
            on_first_byte=self._first_byte,
            on_block=self._verified_block,
            on_lost=lambda failure: log.warning("child_lost", plan=command.plan_id, error=str(failure)),
        )

    def _verified_block(self, index: int) -> None:
        self.ready.add(index)
        self._verified.put_nowait(index)

    async def _lay_out(self) -> None:
        # The engine makes itself ready while the first bytes are on their way.
        self.kv_blocks = await self._runner.load(self.manifest, self.command.max_model_len)
        for laid_out in range(1, len(self.manifest.blocks) + 1):
            index = await self._verified.get()
            await self._runner.add_block(index, self.memory[index])
            self._laid_out = laid_out
            self._on_block(self.command.plan_id, index)
            self._tell_block(index)
        self._tell("whole")

    def _first_byte(self) -> None:
        self._first_byte_at = self._clock.wall()
        self._tell("started")

    def _tell_block(self, index: int) -> None:
        block = BlockReady(
            worker=self._worker,
            model=self.command.model,
            instance=self.command.instance,
            plan_id=self.command.plan_id,
            index=index,
            ready=self._laid_out,
            total=len(self.manifest.blocks),
            at=self._clock.wall(),
        )
        self._bus.publish(BLOCK, block, worker=self._worker)

    def _tell(self, state: TransferState, error: str | None = None) -> None:
        transfer = Transfer(
            plan_id=self.command.plan_id,
            node=self._worker,
            state=state,
            at=self._clock.wall(),
            received_bytes=sum(block.size_bytes for block in self.manifest.blocks[: self._laid_out]),
            first_byte_at=self._first_byte_at,
            error=error,
        )
        self._bus.publish(TRANSFER, transfer, plan=self.command.plan_id)
