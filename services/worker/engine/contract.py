"""An engine as an actor sees it, whether it computes (`runner.py`) or is a model of one that does (`modelled.py`)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from livescale.services.worker.batch import Batch, KvSlice, Piece
from livescale.services.worker.engine.partial import Partial, Passed
from livescale.services.worker.engine.rates import Rates
from livescale.services.worker.send_pauses import SendPauses
from livescale.shared.links.contract import View
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.ranks import Meeting

# A layer of fewer rows than this takes nearly as long. On a core what every layer takes as such is that of 10 to 20
# rows, on a GPU, which reads all of its parameters meanwhile, that of 100 to 300.
CPU_ROWS, GPU_ROWS = 128, 512


@dataclass(frozen=True)
class OnGpu:
    """What an engine on a GPU makes use of, where it can, besides torch's kernels. FlashInfer has to be there."""

    flashinfer: bool = False
    graphs: bool = False


PLAIN = OnGpu()


class BlockMissing(RuntimeError):
    """A step was asked for before the block it needs was added."""


class RankLost(RuntimeError):
    """Another rank of this instance is gone or too late, and this one cannot go on without it."""


class Runner(Protocol):
    """One engine at a time, with KV memory that is kept for every model. Of short prompts so many rows are worth
    running together (`joined_rows`).

    Calls are carried out in the order they were made. A caller that is cancelled leaves its step running: the next
    call waits for it.
    """

    rates: Rates
    pauses: SendPauses
    joined_rows: int
    on_last_layer: Callable[[], None] | None  # as the last layer of a step begins

    async def ready(self) -> None:
        """Return once the KV memory is there. Raises MemoryError."""

    async def kernels_name(self) -> str | None:
        """The name of the bits that it computes; None where it computes nothing."""

    def copied_shapes(self, manifest: Manifest) -> list[str]:
        """Of the model's matrices, those that are copied once they are here, as the kernels want them otherwise."""

    async def open_meeting(self, address: str) -> int:
        """A place at `address` where the ranks of an instance find each other, until `unload`; its port. Raises
        RankLost."""

    async def meet(self, rank: int, size: int, address: str, at: Meeting) -> None:
        """Be one of so many ranks, reached by the others at `address`, in all steps until `unload`. Raises RankLost."""

    async def load(self, manifest: Manifest, max_model_len: int) -> int:
        """Make ready for the blocks of a model; the number of KV blocks it has. Raises ValueError where none fits."""

    async def add_block(self, index: int, buffer: View) -> None:
        """Take block `index`, which is whole in `buffer`. The buffer is in use until `unload` has returned."""

    async def step(self, batch: Batch) -> list[int]:
        """Run `batch` through the whole model: the token of each of its draws."""

    async def run_blocks(self, blocks: range, pieces: Sequence[Piece], activation: memoryview) -> Passed:
        """Run `pieces` through a part of the model. `activation`: what came out of the block before, where the first is
        not the embedding. Raises BlockMissing."""

    async def run_layer(self, partials: Sequence[Partial]) -> None:
        """The next layer of these, which is the same: their rows run together. Raises BlockMissing before its block was
        added."""

    def export_kv(self, blocks: range, layers: int) -> asyncio.Future[memoryview]:
        """A copy of the KV of the first `layers` layers in `blocks`, as it is now: whoever gets the blocks next writes
        later."""

    def export_slices(self, slices: Sequence[KvSlice]) -> asyncio.Future[memoryview]:
        """A copy of these, one after the other, as they are now."""

    async def import_slices(self, slices: Sequence[KvSlice], data: memoryview) -> None:
        """Put what `export_slices` gave for the same positions and layers into these. Raises ValueError for another
        number of bytes."""

    async def unload(self) -> None:
        """Forget the model and let go of its buffers."""

    async def close(self) -> None:
        """Wait for what is under way and end. Idempotent."""
