"""The planner's LOAD, and the host that sends what it announces."""

from collections.abc import Sequence
from contextlib import suppress

from livescale.shared.bus.contract import Bus
from livescale.shared.messages.transfers import Inflow, LiveMode, Load, Node
from livescale.shared.subjects import LOAD
from livescale.shared.transfer.chunks import Chunk
from livescale.shared.transfer.flow_end import FlowEnd, ModelCopy, TransferFailed
from livescale.shared.transfer.sender import send_chunks
from tests.shared.transfer.virtual_link import Mail, VirtualLink
from tests.worker.live.engines import CONTEXT, EngineKind

CHUNK_BYTES = 1 << 20


def node(worker: str) -> Node:
    return Node(id=worker, place="worker", address=worker.encode())


class Loads:
    """Loads of workers; `given` are the blocks that each worker was sent."""

    def __init__(self, bus: Bus, mail: Mail, kind: EngineKind) -> None:
        self.given: dict[str, list[int]] = {}
        self._bus = bus
        self._mail = mail
        self._kind = kind
        self._tickets = 0

    async def load(
        self, workers: Sequence[str], rank: int, blocks: list[int], mode: LiveMode, *, damaged: bool
    ) -> None:
        """Send one of an instance's `workers` these blocks; `damaged` ones count as not sent."""
        worker, kind = workers[rank], self._kind
        new = [block for block in blocks if block not in self.given.setdefault(worker, [])]
        self.given[worker] += [] if damaged else new
        self._tickets += 1
        inflow = Inflow(ticket=self._tickets, upstream=node("host"), blocks=new)
        await self._bus.call(LOAD, self._command(workers, rank, inflow, mode), timeout=5, id=worker)
        await self._feed(worker, inflow.ticket, kind.damaged(new, rank) if damaged else kind.memory(rank))

    def _command(self, workers: Sequence[str], rank: int, inflow: Inflow, mode: LiveMode) -> Load:
        return Load(
            plan_id=f"plan-{workers[0]}",
            model="m",
            instance=f"m-{workers[0]}",
            role="colocated",
            rank=rank,
            ranks=list(workers) if len(workers) > 1 else [],
            manifest=self._kind.manifest.of_shard(rank),
            inflows=[inflow],
            chunk_bytes=CHUNK_BYTES,
            max_model_len=CONTEXT,
            epoch=1,
            live=mode,
        )

    async def _feed(self, worker: str, ticket: int, memory: list[memoryview]) -> None:
        async def here(chunk: Chunk) -> None: ...

        end = FlowEnd(ModelCopy("host", CHUNK_BYTES, memory), ticket, node(worker))
        with suppress(TransferFailed):  # the worker is gone, or was told to stop
            await send_chunks(VirtualLink(self._mail, b"host"), end, here)
