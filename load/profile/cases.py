"""Steps that a profile is measured with: prompts of several lengths and numbers, rows that decode at several places."""

from collections.abc import Iterator, Sequence

from livescale.services.worker.scheduling.batch import PREFILL_CHUNK, Batch, ScheduledChunk, TokenSampling
from livescale.shared.messages.requests import Sampling

# Lengths of prompts that are one step together. What grows with their squares shows in one long against many short.
PROMPTS: tuple[tuple[int, ...], ...] = ((128,), (256,), (512,), (128,) * 4, (1024,), (128,) * 8)
# Rows of a decode step, and how many tokens each has in the cache.
DECODES: tuple[tuple[int, int], ...] = ((1, 64), (1, 1000), (4, 64), (4, 1000), (8, 64), (8, 1000))
REQUEST_TOKENS = 1024  # that there is room for, of a request that decodes
CACHE_TOKENS = REQUEST_TOKENS * max(rows for rows, _ in DECODES)


def batches(block_tokens: int) -> Iterator[Batch]:
    """One a case. Requests lie one after the other in the KV cache."""
    for lengths in PROMPTS:
        starts = [sum(lengths[:index]) for index in range(len(lengths))]
        chunks = [
            chunk
            for start, length in zip(starts, lengths, strict=True)
            for chunk in _prompt(_blocks(start, length, block_tokens), length)
        ]
        yield Batch(1, tuple(chunks))
    for rows, context in DECODES:
        places = [_blocks(row * REQUEST_TOKENS, REQUEST_TOKENS, block_tokens) for row in range(rows)]
        yield Batch(1, tuple(_chunk((1,), context, blocks, decode=True, draws=True) for blocks in places))


def _blocks(start: int, tokens: int, block_tokens: int) -> range:
    return range(start // block_tokens, -(-(start + tokens) // block_tokens))


def _prompt(blocks: range, length: int) -> Iterator[ScheduledChunk]:
    for start in range(0, length, PREFILL_CHUNK):
        stop = min(start + PREFILL_CHUNK, length)
        yield _chunk(range(start, stop), start, blocks, decode=False, draws=stop == length)


def _chunk(tokens: Sequence[int], start: int, blocks: range, *, decode: bool, draws: bool) -> ScheduledChunk:
    sampling = TokenSampling(Sampling(), 0) if draws else None
    return ScheduledChunk(f"at {blocks.start}", tuple(token % 100 for token in tokens), start, blocks, decode, sampling)
