"""What adapters cost a step of decoding, on one core: steps of the same engine with adapters and without, in turn."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from livescale.load.bench.record import Record, measured
from livescale.load.make_adapter import make_adapter
from livescale.services.host.adapter import open_adapter
from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.engine import TorchEngine
from livescale.services.worker.engine.kernels.variants import Kernels
from livescale.services.worker.engine.kv_store import allocate_kv_memory
from livescale.services.worker.scheduling.batch import Batch, ScheduledChunk, TokenSampling, kv_bytes
from livescale.shared.memory.arena import Arena, placed_bytes
from livescale.shared.messages.requests import Sampling

BLOCK_TOKENS, BLOCKS = 16, 8  # KV blocks of each row
POSITION = 64  # at which each row decodes
RANK, ALPHA = 16, 32.0
# Rows of a batch, how many adapters they use, and how long a step may take to one without.
CASES = ((1, 1, 1.10), (32, 4, 1.20))

Times = Mapping[tuple[int, int], Sequence[float]]  # seconds of CPU time of steps, by rows and adapters


def measure_adapters(
    checkpoint: Path, kernels: Kernels | None, rounds: int, tell: Callable[[str], None]
) -> dict[tuple[int, int], list[float]]:
    """Decode with all seven matrices adapted and without, in turn; `rounds` steps of each."""
    torch.set_num_threads(1)
    engine, versions = _engine(checkpoint, kernels, max(adapters for _, adapters, _ in CASES))
    times: dict[tuple[int, int], list[float]] = {}
    for rows, adapters, _ in CASES:
        batches = {(rows, count): _batch(rows, versions[:count]) for count in (0, adapters)}
        for batch in batches.values():
            engine.step(batch)
        for number in range(rounds):
            for case in list(batches)[:: 1 if number % 2 else -1]:
                begun = time.process_time()
                engine.step(batches[case])
                times.setdefault(case, []).append(time.process_time() - begun)
        tell(f"{rows} rows are measured")
    return times


def _engine(checkpoint: Path, kernels: Kernels | None, adapters: int) -> tuple[TorchEngine, list[str]]:
    """An engine with the model and so many adapters, and their versions."""
    opened = open_checkpoint(checkpoint, "bfloat16", layout="panels" if kernels is not None else "plain")
    sizes = [layout.size_bytes for layout in opened.layouts]
    blocks = Arena(placed_bytes(sizes)).place(sizes)
    manifest = opened.manifest([opened.read_block(index, block) for index, block in enumerate(blocks)])
    rows, each = max(rows for rows, _, _ in CASES), BLOCKS * BLOCK_TOKENS
    memory = allocate_kv_memory(kv_bytes(manifest, rows * each, manifest.config.num_hidden_layers, BLOCK_TOKENS))
    engine = TorchEngine(manifest, memory, BLOCK_TOKENS, each, kernels)
    for index, block in enumerate(blocks):
        engine.add_block(index, block)
    versions = []
    for seed in range(adapters):
        with TemporaryDirectory() as made:
            adapter = open_adapter(
                make_adapter(Path(made), checkpoint, RANK, ALPHA, seed=seed), manifest.config, "bfloat16"
            )
            block = memoryview(bytearray(adapter.size_bytes))
            own = adapter.manifest([adapter.read_block(0, block)])
        engine.add_adapter(own, block)
        versions.append(own.version)
    return engine, versions


def _batch(rows: int, versions: Sequence[str]) -> Batch:
    """A step in which so many requests decode; they use these adapters in turn."""
    sampling = TokenSampling(Sampling(temperature=0.0), 0)
    chunks = [
        ScheduledChunk(
            f"r{row}",
            (row + 10,),
            POSITION,
            range(BLOCKS * row, BLOCKS * (row + 1)),
            decode=True,
            sampling=sampling,
            adapter=versions[row % len(versions)] if versions else None,
        )
        for row in range(rows)
    ]
    return Batch(1, tuple(chunks))


def adapter_rows(bench: str, times: Times) -> Iterator[Record]:
    """The time of a step with adapters, to that of a step without."""
    for rows, adapters, bar in CASES:
        with_them, without = median(times[rows, adapters]), median(times[rows, 0])
        case = f"decode b{rows}, {adapters} of rank {RANK} on seven matrices, to none"
        yield measured(bench, case, 1e3 * with_them, "ms", 1e3 * without, at_most=bar)
