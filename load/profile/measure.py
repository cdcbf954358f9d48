"""Runs the engine of this machine through a profile's cases."""

from pathlib import Path
from time import perf_counter

from livescale.load.profile.cases import CACHE_TOKENS, REQUEST_TOKENS, batches
from livescale.load.profile.fit import Measured
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.modelled_steps import work_of
from livescale.services.worker.engine.runner import EngineRunner
from livescale.services.worker.engine.sizes import kv_bytes
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.messages.parameters import DType

REPEATS = 3  # of which the fastest counts, and one before to warm up


async def measure(directory: Path, dtype: DType, threads: int) -> list[Measured]:
    """Every case, on the checkpoint in `directory`. Raises CheckpointError, and MemoryError where it does not fit."""
    opened = open_checkpoint(directory, dtype)
    memory = [memoryview(bytearray(layout.size_bytes)) for layout in opened.layouts]
    manifest = opened.manifest([opened.read_block(index, view) for index, view in enumerate(memory)])
    block_tokens = WorkerSettings().block_size
    cache_bytes = kv_bytes(manifest, CACHE_TOKENS, manifest.config.num_hidden_layers, block_tokens)
    runner = EngineRunner(cache_bytes, block_tokens, threads)
    try:
        await runner.load(manifest, REQUEST_TOKENS)
        for index, view in enumerate(memory):
            await runner.add_block(index, view)
        measured = []
        for batch in batches(block_tokens):
            seconds = []
            for _ in range(1 + REPEATS):
                begun = perf_counter()
                await runner.step(batch)
                seconds.append(perf_counter() - begun)
            measured.append(Measured(work_of(batch.chunks), min(seconds[1:])))
        return measured
    finally:
        await runner.close()
