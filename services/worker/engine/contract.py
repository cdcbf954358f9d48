"""An engine as an actor sees it, whether it computes (`runner.py`) or is a model of one that does (`modelled.py`)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, cast

from livescale.services.worker.engine.send_pauses import SendPauses
from livescale.services.worker.grammars.masks import Vocabulary
from livescale.services.worker.scheduling.batch import (
    MAX_BATCH_ROWS,
    NO_BYTES,
    NOTHING_CHOSEN,
    Batch,
    Chosen,
    KvCopy,
    KvExport,
    KvPiece,
    KvSlice,
    ScheduledChunk,
)
from livescale.services.worker.scheduling.rates import EngineRates
from livescale.shared.links.contract import View
from livescale.shared.messages.model_parallel import Meeting
from livescale.shared.messages.parameters import Manifest
from livescale.shared.messages.requests import Submit


@dataclass(frozen=True, eq=False)
class StageResult:
    """What a part of the model computed for a batch: the activation `[row, hidden]` as bytes, or after the last block
    what was chosen."""

    activation: memoryview
    chosen: Chosen = NOTHING_CHOSEN


class LayerwiseRun:
    """All rows of a request that runs one layer at a time, as `chunks` in order; `done` layers have run.

    `activation` is the input of the next layer, `[position, hidden]` as bytes. Each layer overwrites it.
    """

    def __init__(self, chunks: Sequence[ScheduledChunk], done: int = 0) -> None:
        self.done = done
        self.chunks = chunks
        self.activation = NO_BYTES

    def begin(self, row_bytes: int, new_memory: Callable[[int], View]) -> None:
        """Make room for the activation in `new_memory`, of `row_bytes` bytes a row."""
        memory = new_memory(row_bytes * sum(len(chunk.tokens) for chunk in self.chunks))
        self.activation = cast("memoryview", memory)  # only a modelled engine has other memory, and knows it

    def parts(self) -> Iterator[tuple[ScheduledChunk, memoryview]]:
        """Yield each chunk with its part of the activation, `[row, hidden]` as bytes, to be read and written."""
        row_bytes = self.activation.nbytes // sum(len(chunk.tokens) for chunk in self.chunks)
        start = 0
        for chunk in self.chunks:
            stop = start + len(chunk.tokens) * row_bytes
            yield chunk, self.activation[start:stop]
            start = stop


def rows_of(partials: Iterable[LayerwiseRun]) -> int:
    """Count the rows of these runs, which go through a layer together."""
    return sum(len(chunk.tokens) for partial in partials for chunk in partial.chunks)


@dataclass(frozen=True)
class Slab:
    """Rows of one or several requests that run together, with the activations of each chunk."""

    chunks: list[ScheduledChunk]
    activations: list[memoryview]


def zeros(size_bytes: int) -> memoryview:
    """Return so many bytes of the host's memory, all of them 0."""
    return memoryview(bytearray(size_bytes))


def begin_layer(partials: Sequence[LayerwiseRun], row_bytes: int, new_memory: Callable[[int], View] = zeros) -> None:
    """Make room in `new_memory` for the activations of requests that begin. Raises ValueError for requests that stand
    at different layers."""
    if len({partial.done for partial in partials}) > 1:
        raise ValueError(f"layers {[partial.done for partial in partials]} are next: only one can be run")
    for partial in partials:
        if not partial.activation:
            partial.begin(row_bytes, new_memory)


def slab_chunks(partials: Iterable[LayerwiseRun]) -> Iterator[list[ScheduledChunk]]:
    """Group all rows of `partials` into slabs, each with no more rows than a batch may have. Rows of a request stay in
    order."""
    chosen: list[ScheduledChunk] = []
    rows = 0
    for partial in partials:
        for chunk in partial.chunks:
            if rows + len(chunk.tokens) > MAX_BATCH_ROWS:
                yield chosen
                chosen, rows = [], 0
            chosen.append(chunk)
            rows += len(chunk.tokens)
    yield chosen


def slabs(partials: Sequence[LayerwiseRun], row_bytes: int) -> Iterator[Slab]:
    """The slabs of `partials` with their activations. Raises ValueError as `begin_layer`."""
    begin_layer(partials, row_bytes)
    activations = (activation for partial in partials for _, activation in partial.parts())
    for chunks in slab_chunks(partials):
        yield Slab(chunks, list(islice(activations, len(chunks))))


# A layer of fewer rows than this takes nearly as long. Its fixed cost is that of 10 to 20 rows on a CPU core, and of
# 100 to 300 rows on a GPU, which reads all parameters meanwhile.
CPU_ROWS, GPU_ROWS = 128, 512


@dataclass(frozen=True)
class GpuFeatures:
    """What an engine on a GPU uses besides torch's kernels: FlashInfer, which has to be installed, and CUDA graphs."""

    flashinfer: bool = False
    graphs: bool = False


NO_GPU_FEATURES = GpuFeatures()


class BlockMissing(RuntimeError):
    """A step needs a parameter block that was not added yet."""


class RankLost(RuntimeError):
    """Another rank of this instance is gone or too late, and this one cannot go on without it."""


class AdapterUnavailable(Exception):
    """An adapter could not be fetched, or there is no room for it."""


UNAVAILABLE = 503  # the code of the refusal by which another worker is told so


class AdapterMissing(RuntimeError):
    """A step needs an adapter that was not added."""


@dataclass(frozen=True)
class AdapterData:
    """An adapter: its manifest, and the bytes of its one block."""

    manifest: Manifest
    data: View


# Fetches an adapter by its version. Raises AdapterUnavailable.
FetchAdapter = Callable[[str], Awaitable[AdapterData]]

# Takes a piece of KV that leaves in a step: of which export it is, its layers, its bytes with `SPARE_BYTES` more.
KvTaker = Callable[[KvExport, range, memoryview], None]


class Runner(Protocol):
    """One engine at a time, and KV memory that is kept for every model. `rates` and `pauses` are what its steps show.

    Calls are carried out in the order they were made. A caller that is cancelled leaves its step running: the next call
    waits for it. Requests with short prompts run their layers together up to `joined_rows` rows. `on_last_layer` is
    called when the last layer of a step begins, `on_kv` with each piece of KV that leaves in a step. One that
    `applies_grammars` has to learn the vocabulary first. Rows of an adapter that is not here wait for `fetch_adapter`.
    """

    rates: EngineRates
    pauses: SendPauses
    joined_rows: int
    applies_grammars: bool
    on_last_layer: Callable[[], None] | None  # as the last layer of a step begins
    on_kv: KvTaker
    fetch_adapter: FetchAdapter | None

    @property
    def adapters(self) -> Mapping[str, int]:
        """The bytes of each adapter that is here, by its version."""

    async def ready(self) -> None:
        """Return once the KV memory is there. Raises MemoryError."""

    async def kernels_name(self) -> str | None:
        """The name of the bits that it computes; None where it computes nothing."""

    def copied_shapes(self, manifest: Manifest) -> list[str]:
        """The shapes of the matrices that are copied when they arrive, because the kernels want another layout."""

    async def open_meeting(self, address: str) -> int:
        """Open a place at `address` where the ranks of an instance meet, until `unload`. Returns its port. Raises
        RankLost."""

    async def meet(self, rank: int, size: int, address: str, at: Meeting) -> None:
        """Join the other ranks as rank `rank` of `size`, in all steps until `unload`.

        The others reach this one at `address`; they meet at `at`. Raises RankLost.
        """

    async def load(self, manifest: Manifest, max_model_len: int) -> int:
        """Prepare for the blocks of a model. Returns its number of KV blocks. Raises ValueError where not even one
        fits."""

    async def add_block(self, index: int, buffer: View) -> None:
        """Take block `index`, which is whole in `buffer`. The buffer is in use until `unload` has returned."""

    async def add_adapter(self, adapter: AdapterData) -> None:
        """Take an adapter of the model that is loaded. Raises ValueError where it is of another one."""

    async def remove_adapter(self, version: str) -> None:
        """Forget an adapter; one that is not here is no error."""

    async def learn(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        """Have grammars applied to the model that is loaded, or is going to be, until `unload`. Raises MasksFailed."""

    async def first_mask(self, request: Submit, generated: Sequence[int]) -> None:
        """Return once it is known which tokens a request's grammar permits after those that it has, or never will."""

    def forget_masks(self, request_id: str) -> None:
        """A request that had a grammar has ended, or is no longer here."""

    async def step(self, batch: Batch) -> Chosen:
        """Run `batch` through the whole model. Returns what is chosen for its samplings."""

    async def run_blocks(self, blocks: range, chunks: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
        """Run `chunks` through a part of the model.

        `activation` is the output of the block before, unless the first block is the embedding. Raises BlockMissing.
        """

    async def run_layer(self, partials: Sequence[LayerwiseRun]) -> None:
        """Run the next layer of all these requests together; it is the same layer.

        Raises BlockMissing before its block was added.
        """

    def new_memory(self, size_bytes: int) -> View:
        """Return memory of the host for KV or an activation of another runner. What is in it before means nothing."""

    def export_kv(self, blocks: range, layers: int) -> asyncio.Future[View]:
        """Copy the KV of the first `layers` layers in `blocks` as it is now, before the blocks' next owner writes."""

    def export_slices(self, slices: Sequence[KvSlice], spare_bytes: int = 0) -> asyncio.Future[memoryview]:
        """Copy these slices of KV as they are now, one after the other. So many spare bytes follow, for the caller."""

    async def import_slices(self, slices: Sequence[KvSlice], data: memoryview) -> None:
        """Store what `export_slices` returned for the same positions and layers. Raises ValueError for a wrong number
        of bytes."""

    async def lay_down(self, copies: Sequence[KvCopy], pieces: Sequence[KvPiece]) -> None:
        """Make these copies within the cache, then store pieces of KV from other workers. Raises ValueError for a wrong
        number of bytes. A caller that is cancelled leaves this running."""

    async def unload(self) -> None:
        """Forget the model and let go of its buffers."""

    async def close(self) -> None:
        """Wait for what is under way and end. Idempotent."""
