"""Measures how long the engine's steps take on this machine, and fits a latency for modelled engines to them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from livescale.services.host.checkpoint import open_checkpoint
from livescale.services.worker.engine.modelled_steps import work_of
from livescale.services.worker.engine.runner import EngineRunner
from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, Batch, ScheduledChunk, TokenSampling, kv_bytes
from livescale.services.worker.settings import WorkerSettings
from livescale.shared.messages.parameters import DType, ModelConfig
from livescale.shared.messages.requests import Sampling
from livescale.shared.model.checkpoint import CheckpointError
from livescale.shared.model.latency import Latency, Work

# Lengths of prompts that are one step together. What grows with their squares shows in one long against many short.
PROMPTS: tuple[tuple[int, ...], ...] = ((128,), (256,), (512,), (128,) * 4, (1024,), (128,) * 8)
# Rows of a decode step, and how many tokens each has in the cache.
DECODES: tuple[tuple[int, int], ...] = ((1, 64), (1, 1000), (4, 64), (4, 1000), (8, 64), (8, 1000))
REQUEST_TOKENS = 1024  # that there is room for, of a request that decodes
CACHE_TOKENS = REQUEST_TOKENS * max(rows for rows, _ in DECODES)
DIGITS = 4
REPEATS = 3  # of which the fastest counts, and one before to warm up


def batches(block_tokens: int) -> Iterator[Batch]:
    """One a case. Requests lie one after the other in the KV cache."""
    for lengths in PROMPTS:
        starts = [sum(lengths[:index]) for index in range(len(lengths))]
        pieces = [
            piece
            for start, length in zip(starts, lengths, strict=True)
            for piece in _prompt(_blocks(start, length, block_tokens), length)
        ]
        yield Batch(1, tuple(pieces))
    for rows, context in DECODES:
        places = [_blocks(row * REQUEST_TOKENS, REQUEST_TOKENS, block_tokens) for row in range(rows)]
        yield Batch(1, tuple(_piece((1,), context, blocks, decode=True, draws=True) for blocks in places))


def _blocks(start: int, tokens: int, block_tokens: int) -> range:
    return range(start // block_tokens, -(-(start + tokens) // block_tokens))


def _prompt(blocks: range, length: int) -> Iterator[ScheduledChunk]:
    for start in range(0, length, PREFILL_CHUNK):
        stop = min(start + PREFILL_CHUNK, length)
        yield _piece(range(start, stop), start, blocks, decode=False, draws=stop == length)


def _piece(tokens: Sequence[int], start: int, blocks: range, *, decode: bool, draws: bool) -> ScheduledChunk:
    draw = TokenSampling(Sampling(), 0) if draws else None
    return ScheduledChunk(f"at {blocks.start}", tuple(token % 100 for token in tokens), start, blocks, decode, draw)


@dataclass(frozen=True)
class MeasuredStep:
    """The work of a step, and how long it took."""

    work: Work
    seconds: float


def fit(steps: Sequence[MeasuredStep], source: str) -> Latency:
    """Steps that prefill and steps that decode, several of each and none that does both."""
    prefill = [step for step in steps if step.work.prefill_tokens]
    decode = [step for step in steps if step.work.decode_rows]
    return Latency(
        source=source,
        prefill=_solve([(1, one.work.prefill_tokens, one.work.prefill_squares) for one in prefill], prefill),
        decode=_solve([(1, one.work.decode_rows, one.work.decode_kv_tokens) for one in decode], decode),
    )


def worst_error(latency: Latency, steps: Sequence[MeasuredStep]) -> float:
    """The largest error of the latency over all steps, as a share of the measured time."""
    return max(abs(latency.seconds(step.work) / step.seconds - 1) for step in steps)


def _solve(factors: Sequence[tuple[int, int, int]], steps: Sequence[MeasuredStep]) -> tuple[float, float, float]:
    """The milliseconds for each column of `factors`."""
    # Imported here: it takes a third of a second, and what else imports this module solves nothing.
    from scipy.optimize import nnls

    milliseconds = np.array([step.seconds * 1e3 for step in steps])
    # Each row over what was measured, so that short steps count as much as long ones.
    relative = np.array(factors, dtype=np.float64) / milliseconds[:, None]
    solution, _ = nnls(relative, np.ones(len(steps)))
    step, linear, quadratic = (float(f"{figure:.{DIGITS}g}") for figure in solution)
    return step, linear, quadratic


def refuse_unmeasurable(directory: Path, config: ModelConfig) -> None:
    """Raise CheckpointError where a model makes no tokens, or takes no requests of the lengths that are measured."""
    if config.encodes or config.pooling != "none":
        raise CheckpointError(
            f"{directory}: {config.family} makes no tokens, and a profile is of prompts and answers; "
            "give a model that answers"
        )
    if config.max_position_embeddings < REQUEST_TOKENS:
        raise CheckpointError(
            f"{directory / 'config.json'}: max_position_embeddings is {config.max_position_embeddings}, and steps of "
            f"up to {REQUEST_TOKENS} tokens are measured; give a model with room for them"
        )


async def measure(directory: Path, dtype: DType, threads: int) -> list[MeasuredStep]:
    """Every case, on the checkpoint in `directory`. Raises CheckpointError, and MemoryError where it does not fit."""
    opened = open_checkpoint(directory, dtype)
    refuse_unmeasurable(directory, opened.config)
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
            measured.append(MeasuredStep(work_of(batch.chunks), min(seconds[1:])))
        return measured
    finally:
        await runner.close()
