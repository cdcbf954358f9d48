"""A modelled engine that notes which blocks it is given and which it runs."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from livescale.load.simulate.seeds.history import History, LaidOut, Ran
from livescale.services.worker.engine.contract import LayerwiseRun, StageResult
from livescale.services.worker.engine.modelled import ModelledRunner
from livescale.services.worker.scheduling.batch import Batch, Chosen, ScheduledChunk
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.links.contract import View, checksum
from livescale.shared.messages.parameters import Manifest
from livescale.shared.model.latency import Latency
from livescale.shared.runtime.clock import Clock
from livescale.shared.simulation.virtual_clock import machine_time


class WatchedRunner(ModelledRunner):
    """An engine that notes which blocks it is given and which it runs. Every load is another engine. Answers may end
    before they are as long as they may be."""

    ends = True

    def __init__(self, worker: str, settings: WorkerSettings, latency: Latency, clock: Clock, seen: History) -> None:
        memory = settings.kv_bytes, settings.block_size, latency, settings.engine_speed, clock, settings.host_kv_bytes
        super().__init__(*memory)
        self._worker = worker
        self._loads = 0
        self._seen = seen
        self._ran: set[tuple[int, int]] = set()
        self._blocks: Sequence[int] = ()

    @property
    def _engine(self) -> str:
        return f"{self._worker}, load {self._loads}"

    async def load(self, manifest: Manifest, max_model_len: int) -> int:
        self._loads += 1
        self._ran.clear()
        self._blocks = [block.checksum for block in manifest.blocks]
        return await super().load(manifest, max_model_len)

    async def add_block(self, index: int, buffer: View) -> None:
        self._seen.engines.append(LaidOut(self._engine, index, checksum(buffer) == self._blocks[index]))
        await super().add_block(index, buffer)

    async def step(self, batch: Batch) -> Chosen:
        self._run(range(len(self._blocks)))
        self._check_owners(batch.chunks)
        return await super().step(batch)

    async def run_blocks(self, blocks: range, chunks: Sequence[ScheduledChunk], activation: memoryview) -> StageResult:
        self._run(blocks)
        return await super().run_blocks(blocks, chunks, activation)

    async def run_layer(self, partials: Sequence[LayerwiseRun]) -> None:
        layer = partials[0].done
        self._run(range(layer + 1 if layer else 0, layer + 2))
        await super().run_layer(partials)

    def _run(self, blocks: range) -> None:
        if (blocks.start, blocks.stop) not in self._ran:
            self._ran.add((blocks.start, blocks.stop))
            self._seen.engines.append(Ran(self._engine, blocks.start, blocks.stop, machine_time()))

    def _check_owners(self, chunks: Iterable[ScheduledChunk]) -> None:
        owned = sorted({(chunk.blocks.start, chunk.blocks.stop, chunk.request_id) for chunk in chunks})
        for (_, stop, one), (start, _, other) in pairwise(owned):
            if start < stop and one != other:
                self._seen.overlaps.append(f"{self._engine}: {one} and {other} have KV block {start}")
