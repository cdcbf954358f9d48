"""What a modelled step takes and yields: seconds by a latency model, and tokens that are made up. Pure.

A token depends on the model, the adapter, all tokens before it and the request's seed, and on nothing else. In place of
activations, keys and values there is one number a token, its state: a hash of all tokens up to it. States are kept
where keys and values would be, and travel as these do. So tokens are wrong where something was lost on the way.
"""

import math
import struct
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, pairwise

from livescale.services.worker.scheduling.batch import Batch, ScheduledChunk, TokenSampling
from livescale.shared.messages.requests import TokenLogprobs
from livescale.shared.model.latency import EMBEDDING_SHARE, HEAD_SHARE, Latency, Work

LAYERS_SHARE = 1 - EMBEDDING_SHARE - HEAD_SHARE


def work_of(chunks: Iterable[ScheduledChunk]) -> Work:
    """The work in these chunks. Chunks of a prompt add up to the work of the whole prompt."""
    tokens = squares = rows = kv_tokens = 0
    for chunk in chunks:
        if chunk.decode:
            rows += len(chunk.tokens)
            kv_tokens += sum(range(chunk.start + 1, chunk.stop + 1))
        else:
            tokens += len(chunk.tokens)
            squares += chunk.stop**2 - chunk.start**2
    return Work(tokens, squares, rows, kv_tokens)


def embedding_seconds(latency: Latency, chunks: Sequence[ScheduledChunk]) -> float:
    """How long the embedding of these chunks takes, in seconds."""
    return EMBEDDING_SHARE * latency.seconds(work_of(chunks))


def layer_seconds(latency: Latency, chunks: Sequence[ScheduledChunk], layers: int) -> float:
    """How long one of a model's `layers` layers takes, in seconds."""
    return LAYERS_SHARE / layers * latency.seconds(work_of(chunks))


def blocks_seconds(latency: Latency, chunks: Sequence[ScheduledChunk], blocks: range, layers: int) -> float:
    """How long a part of the model takes, whose first block is the embedding and whose last is the head."""
    seconds = layer_seconds(latency, chunks, layers) * len(range(max(blocks.start, 1), min(blocks.stop, layers + 1)))
    if blocks.start == 0:
        seconds += embedding_seconds(latency, chunks)
    if blocks.stop == layers + 2:
        seconds += HEAD_SHARE * latency.seconds(work_of(chunks))
    return seconds


def step_seconds(latency: Latency, batch: Batch, layers: int) -> float:
    """How long all layers that are left of each chunk take, with embedding and head.

    Rows join the others at the layer at which they enter.
    """
    chunks = batch.chunks
    starts, whole = sorted({chunk.layer for chunk in chunks}), latency.seconds(work_of(chunks))
    seconds = HEAD_SHARE * whole
    if starts[0] == 0:
        first = [chunk for chunk in chunks if chunk.layer == 0]
        seconds += EMBEDDING_SHARE * (whole if len(first) == len(chunks) else latency.seconds(work_of(first)))
    for start, end in pairwise([*starts, layers]):
        joined = [chunk for chunk in chunks if chunk.layer <= start]
        theirs = whole if len(joined) == len(chunks) else latency.seconds(work_of(joined))
        seconds += (end - start) * (LAYERS_SHARE / layers * theirs)
    return seconds


MASK = (1 << 64) - 1
PRIME = 0x100000001B3  # of FNV-1a
INVERSE = pow(PRIME, -1, 1 << 64)
MOST_TOKENS = 1 << 32
STATE_BYTES = 8
PROMPTS_KEPT = 1024  # chunks of prompts whose states are remembered
ORIGINS_KEPT = 256  # models and adapters whose first state is remembered
DAMAGED = int.from_bytes(b"damaged!")


@lru_cache(maxsize=ORIGINS_KEPT)
def first_state(version: str, adapter: str | None = None) -> int:
    """The state before the first token, by the versions of the model and of the adapter."""
    whose = version if adapter is None else f"{version}+{adapter}"
    return int.from_bytes(blake2b(whose.encode(), digest_size=STATE_BYTES).digest(), "little")


def follow(state: int, tokens: Iterable[int]) -> Iterable[int]:
    """Yield the state after each of `tokens`, which follow `state`."""
    for token in tokens:
        state = ((state ^ (token + 1)) * PRIME) & MASK
        yield state


@lru_cache(maxsize=PROMPTS_KEPT)
def prompt_states(state: int, tokens: tuple[int, ...]) -> "array[int]":
    """The states after each of `tokens`, not to be changed: all layers and ranks that run a chunk of a prompt ask for
    the same."""
    return array("Q", follow(state, tokens))


def follows(state: int, other: int) -> bool:
    """Whether some token leads from one state to the other. Of two that have nothing to do with each other it is true
    once in 4 billion times."""
    return 0 < (other * INVERSE & MASK) ^ state <= MOST_TOKENS


def cuts(states: Iterable[int]) -> list[int]:
    """The places of the states that do not follow the one before, but for the first place; 0 is followed by none."""
    # As `follows` says, without a call for each token of a prompt.
    pairs = enumerate(pairwise(states), 1)
    return [at for at, (one, next) in pairs if not (one and 0 < (next * INVERSE & MASK) ^ one <= MOST_TOKENS)]


def damaged(tokens: Sequence[int]) -> "array[int]":
    """States of rows that attended to something wrong. They follow no state of any request."""
    return array("Q", follow(DAMAGED, tokens))


def choose_token(state: int, sampling: TokenSampling, vocab_size: int, *, ends: bool = False) -> int:
    """The token after this state: evenly from the vocabulary, but none that would end the request, unless it `ends`."""
    seed = 0 if sampling.is_greedy else sampling.params.seed + 1
    first = _mixed(state ^ _mixed(seed & MASK)) % vocab_size
    if first not in sampling.forbidden and (ends or first not in sampling.stops):
        return first
    never = set(sampling.forbidden if ends else (*sampling.forbidden, *sampling.stops))
    return next((token for token in chain(range(first, vocab_size), range(first)) if token not in never), first)


def even_logprobs(token: int, count: int, vocab_size: int) -> TokenLogprobs:
    """What is told of a token where all are equally likely: it comes before the `count` - 1 that follow it."""
    [each] = struct.unpack("=f", struct.pack("=f", -math.log(vocab_size)))  # rounded as an engine's
    return TokenLogprobs(each, [((token + more) % vocab_size, each) for more in range(min(count, vocab_size))], 1)


def made_up_vector(state: int, size: int) -> bytes:
    """A vector of float32 between -1 and 1 after this state."""
    numbers = (_mixed(state ^ place) / 2**63 - 1 for place in range(1, size + 1))
    return struct.pack(f"<{size}f", *numbers)


def _mixed(number: int) -> int:
    """Every bit of the result depends on every bit of `number` (the finalizer of splitmix64)."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)
