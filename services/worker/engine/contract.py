"""An engine as an actor sees it, whether it computes (`runner.py`) or is a model of one that does (`modelled.py`)."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from livescale.services.worker.scheduling.batch import MAX_BATCH_ROWS, NO_BYTES, Batch, KvSlice, ScheduledChunk
from livescale.services.worker.scheduling.rates import EngineRates
from livescale.services.worker.send_pauses import SendPauses
from livescale.shared.links.contract import View
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.ranks import Meeting


@dataclass(frozen=True, eq=False)
class StageResult:
    """A batch after some of the model's blocks: its activation `[row, hidden]` as bytes, or after the last the tokens
    of its draws."""

    activation: memoryview
    tokens: list[int]


class LayerwiseRun:
    """All rows of a request, as `chunks` of it in order; `done` layers were run.

    `activation` is what the next layer takes, `[position, hidden]` as bytes. It changes with every layer.
    """

    def __init__(self, chunks: Sequence[ScheduledChunk], done: int = 0) -> None:
        self.done = done
        self.chunks = chunks
        self.activation = NO_BYTES

    def begin(self, row_bytes: int) -> None:
        """Have room for the activation."""
        self.activation = memoryview(bytearray(row_bytes * sum(len(chunk.tokens) for chunk in self.chunks)))

    def parts(self) -> Iterator[tuple[ScheduledChunk, memoryview]]:
        """Of each chunk the activations `[row, hidden]` as bytes, to be read and written."""
        row_bytes = len(self.activation) // sum(len(chunk.tokens) for chunk in self.chunks)
        start = 0
        for chunk in self.chunks:
            stop = start + len(chunk.tokens) * row_bytes
            yield chunk, self.activation[start:stop]
            start = stop


@dataclass(frozen=True)
class Slab:
    """Rows of one or several requests that run together, and of each chunk its activations."""

    chunks: list[ScheduledChunk]
    activations: list[memoryview]


def slabs(partials: Sequence[LayerwiseRun], row_bytes: int) -> Iterator[Slab]:
    """All rows of these, those of a request in order, no more together than a batch may have. Raises ValueError for
    requests that stand at different layers."""
    if len({partial.done for partial in partials}) > 1:
        raise ValueError(f"layers {[partial.done for partial in partials]} are next: only one can be run")
    chosen: list[tuple[ScheduledChunk, memoryview]] = []
    rows = 0
    for partial in partials:
        if not partial.activation:
            partial.begin(row_bytes)
        for chunk, activation in partial.parts():
            if rows + len(chunk.tokens) > MAX_BATCH_ROWS:
                yield _slab(chosen)
                chosen, rows = [], 0
            chosen.append((chunk, activation))
            rows += len(chunk.tokens)
    yield _slab(chosen)


def _slab(chosen: Sequence[tuple[ScheduledChunk, memoryview]]) -> Slab:
    return Slab([chunk for chunk, _ in chosen], [activation for _, activation in chosen])


# A layer of fewer rows than this takes nearly as long. On a core what every layer takes as such is that of 10 to 20
# rows, on a GPU, which reads all of its parameters meanwhile, that of 100 to 300.
CPU_ROWS, GPU_ROWS = 128, 512


@dataclass(frozen=True)
class GpuFeatures:
    """What an engine on a GPU makes use of, where it can, besides torch's kernels. FlashInfer has to be there."""

    flashinfer: bool = False
    graphs: bool = False


NO_GPU_FEATURES = GpuFeatures()


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

    rates: EngineRates
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

    async def run_blocks(self, blocks: range, chunks: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
        """Run `chunks` through a part of the model. `activation`: what came out of the block before, where the first is
        not the embedding. Raises BlockMissing."""

    async def run_layer(self, partials: Sequence[LayerwiseRun]) -> None:
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
