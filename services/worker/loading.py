"""Parameters on their way into a worker: received, forwarded, verified, and laid out for the kernels at once."""

from collections.abc import Callable
from concurrent.futures import Executor
from enum import StrEnum

import structlog

from services.worker.engine.runner import EngineRunner
from shared.links.contract import Link
from shared.messages.parameters import Manifest
from shared.messages.scaling import BlockReady, Load, Transfer, TransferState
from shared.process import World
from shared.subjects import BLOCK, TRANSFER
from shared.telemetry import Telemetry
from shared.transfer.arrivals import Arrivals
from shared.transfer.part import Part, TransferFailed, together
from shared.transfer.ready import ReadyBlocks
from shared.transfer.receive import receive_blocks

FETCHES = 2  # of one block: a second wrong checksum says that no source has it right

log = structlog.get_logger()


class Outcome(StrEnum):
    """How one run of a load ended. After BROKEN it can be run again, from a new LOAD."""

    WHOLE = "whole"
    BROKEN = "broken"
    FAILED = "failed"


class LoadCounts:
    """What a worker counts of its loads."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.received = telemetry.counter(
            "livescale_worker_received_bytes_total", "Bytes of parameters that came over the link"
        )
        self.broken = telemetry.counter(
            "livescale_worker_broken_transfers_total", "Transfers that lost their upstream and waited for another"
        )
        self.damaged = telemetry.counter(
            "livescale_worker_damaged_blocks_total", "Blocks that came with a wrong checksum and were fetched again"
        )


class Loading:
    """The parameters of one plan, however many LOADs it takes. `ready` is what may be sent on to others; `on_block`
    tells that a layer may run."""

    def __init__(
        self,
        worker: str,
        command: Load,
        memory: list[memoryview],
        world: World,
        runner: EngineRunner,
        counts: LoadCounts,
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
        self._counts = counts
        self._on_block = on_block
        self._arrivals: Arrivals | None = None
        self._first_byte_at: float | None = None
        self._laid_out = 0

    @property
    def manifest(self) -> Manifest:
        return self.command.manifest

    async def run(self, link: Link, executor: Executor) -> Outcome:
        """Carry out `command`, from what is here already. Ends are told to the planner, not raised."""
        try:
            await together(self._receive(link, executor), self._lay_out())
        except TransferFailed as error:
            again = self._may_come_again()
            return self._end(Outcome.BROKEN if again else Outcome.FAILED, str(error))
        except (ValueError, RuntimeError, MemoryError) as error:
            return self._end(Outcome.FAILED, str(error) or type(error).__name__)
        return Outcome.WHOLE

    def _end(self, outcome: Outcome, error: str) -> Outcome:
        log.warning("load_ended", plan=self.command.plan_id, outcome=outcome.value, error=error)
        if outcome is Outcome.BROKEN:
            self._counts.broken.inc()
        else:
            self.ready.lose(error)
        self._tell("broken" if outcome is Outcome.BROKEN else "failed", error=error)
        return outcome

    def _may_come_again(self) -> bool:
        return self._arrivals is None or max(self._arrivals.damaged.values(), default=0) < FETCHES

    async def _receive(self, link: Link, executor: Executor) -> None:
        command = self.command
        part = Part(
            self._worker, command.ticket, command.chunk_bytes, self.memory, command.downstream, secret=command.secret
        )
        here = self._arrivals = self._arrivals or Arrivals(part)
        received, damaged = here.received_bytes, here.damaged.total()
        try:
            await receive_blocks(
                link,
                part,
                command.upstream,
                self.manifest.blocks,
                executor,
                on_first_byte=self._first_byte,
                on_block=self.ready.add,
                on_lost=lambda failure: log.warning("child_lost", plan=command.plan_id, error=str(failure)),
                arrivals=here,
            )
        finally:
            self._counts.received.inc(here.received_bytes - received)
            self._counts.damaged.inc(here.damaged.total() - damaged)

    async def _lay_out(self) -> None:
        # The engine makes itself ready while the first bytes are on their way.
        self.kv_blocks = self.kv_blocks or await self._runner.load(self.manifest, self.command.max_model_len)
        while self._laid_out < len(self.manifest.blocks):
            index = self.manifest.blocks[self._laid_out].index
            await self.ready.wait_ready(index)
            await self._runner.add_block(index, self.memory[index])
            self._laid_out += 1
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
            ticket=self.command.ticket,
            received_bytes=0 if self._arrivals is None else self._arrivals.received_bytes,
            first_byte_at=self._first_byte_at,
            error=error,
        )
        self._bus.publish(TRANSFER, transfer, plan=self.command.plan_id)
