"""What a modelled step takes and yields: seconds by a latency model, and tokens that are made up. Pure.

A token depends on the model, all tokens before it and the request's seed, and on nothing else. In place of activations,
keys and values there is one number a token, its state: a hash of all tokens up to it. States are kept where keys and
values would be, and travel as these do. So tokens are wrong where something was lost on the way.
"""

import struct
from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain, pairwise

from livescale.services.worker.scheduling.batch import Batch, KvSlice, ScheduledChunk, TokenSampling
from livescale.shared.model.latency import EMBEDDING_SHARE, HEAD_SHARE, Latency, Work


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
    return (1 - EMBEDDING_SHARE - HEAD_SHARE) / layers * latency.seconds(work_of(chunks))


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
    starts = sorted({chunk.layer for chunk in batch.chunks})
    seconds = HEAD_SHARE * latency.seconds(work_of(batch.chunks))
    if starts[0] == 0:
        seconds += embedding_seconds(latency, [chunk for chunk in batch.chunks if chunk.layer == 0])
    for start, end in pairwise([*starts, layers]):
        joined = [chunk for chunk in batch.chunks if chunk.layer <= start]
        seconds += (end - start) * layer_seconds(latency, joined, layers)
    return seconds


MASK = (1 << 64) - 1
PRIME = 0x100000001B3  # of FNV-1a
STATE = struct.Struct("<Q")


def first_state(version: str) -> int:
    """The state before the first token, by the model's version."""
    return int.from_bytes(blake2b(version.encode(), digest_size=STATE.size).digest(), "little")


def follow(state: int, tokens: Iterable[int]) -> Iterable[int]:
    """Yield the state after each of `tokens`, which follow `state`."""
    for token in tokens:
        state = ((state ^ (token + 1)) * PRIME) & MASK
        yield state


def agreed(state: int, other: int) -> int:
    """The state where both are the same, and else another number than either."""
    return (2 * state - other) & MASK


def choose_token(state: int, sampling: TokenSampling, vocab_size: int) -> int:
    """The token after this state: evenly from the vocabulary, but never one that would end the request."""
    seed = 0 if sampling.is_greedy else sampling.params.seed + 1
    first = _mixed(state ^ _mixed(seed & MASK)) % vocab_size
    never = {*sampling.forbidden, *sampling.stops}
    return next((token for token in chain(range(first, vocab_size), range(first)) if token not in never), first)


def _mixed(number: int) -> int:
    """Every bit of the result depends on every bit of `number` (the finalizer of splitmix64)."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


class StateCache:
    """The states of all tokens in the KV cache of `blocks` blocks, and in `host_blocks` blocks with negative
    numbers."""

    def __init__(self, blocks: int, block_tokens: int, host_blocks: int = 0) -> None:
        self._block_tokens = block_tokens
        self._blocks = blocks + host_blocks
        self._states = array("Q", (0,)) * (self._blocks * block_tokens)
        self._partial: dict[int, tuple[int, int]] = {}  # by slot: a state that came, and with which layers, as bits

    def before(self, chunk: ScheduledChunk) -> int:
        """The state that `chunk` goes on from; it is not the first of its request."""
        return self._states[self._slot(chunk) - 1]

    def write(self, chunk: ScheduledChunk, states: Iterable[int]) -> None:
        """Store the state of each token of `chunk`."""
        slot = self._slot(chunk)
        self._put(slot, array("Q", states))

    def export(self, blocks: range, size_bytes: int) -> memoryview:
        """Copy `blocks`, filled up to the size that their keys and values would have."""
        states = self._states[self._tokens(blocks)].tobytes()
        data = bytearray(size_bytes)
        data[: len(states)] = states
        return memoryview(data)

    def take(self, blocks: range, data: memoryview) -> None:
        """Store what `export` returned for as many blocks."""
        tokens = len(blocks) * self._block_tokens
        self._put(self._tokens(blocks).start, array("Q", data[: STATE.size * tokens].tobytes()))

    def export_slice(self, one: KvSlice, size_bytes: int) -> bytearray:
        """Copy the states of a slice, once for each of its layers, each filled up to the size of its keys and
        values."""
        first = one.blocks.start * self._block_tokens
        states = self._states[first + one.start : first + one.stop].tobytes()
        return bytearray().join(states.ljust(size_bytes // len(one.layers), b"\0") for _ in one.layers)

    def take_slice(self, one: KvSlice, data: memoryview, layers: int) -> None:
        """Store what `export_slice` returned. A state is here once it has come with each of the model's layers, and
        what lay there is lost before."""
        each = len(data) // len(one.layers)
        first = one.blocks.start * self._block_tokens + one.start
        for number, layer in enumerate(one.layers):
            part = data[number * each : number * each + STATE.size * (one.stop - one.start)]
            for slot, state in enumerate(array("Q", part.tobytes()), start=first):
                self._come(slot, state, 1 << layer, (1 << layers) - 1)

    def _come(self, slot: int, state: int, layer: int, all_layers: int) -> None:
        if self._states[slot] == state:
            return
        before, came = self._partial.pop(slot, (state, 0))
        came = came | layer if before == state else layer
        if came == all_layers:
            self._states[slot] = state
        else:
            self._states[slot], self._partial[slot] = _mixed((state + 1) & MASK), (state, came)

    def _put(self, slot: int, states: "array[int]") -> None:
        self._states[slot : slot + len(states)] = states
        if self._partial:
            for one in range(slot, slot + len(states)):
                self._partial.pop(one, None)

    def copy(self, source: range, target: range) -> None:
        """Copy the states in `source` into as many other blocks."""
        self._put(self._tokens(target).start, self._states[self._tokens(source)])

    def _tokens(self, blocks: range) -> slice:
        start = blocks.start % self._blocks * self._block_tokens
        return slice(start, start + len(blocks) * self._block_tokens)

    def _slot(self, chunk: ScheduledChunk) -> int:
        return chunk.blocks.start * self._block_tokens + chunk.start


def write_states(data: memoryview, states: Sequence[int]) -> None:
    """Write states into activations `[row, hidden]`, one at the beginning of each row."""
    for row, state in enumerate(states):
        STATE.pack_into(data, row * (len(data) // len(states)), state)


def read_states(data: memoryview, rows: range, positions: int) -> list[int]:
    """Read the states of `rows` from activations that have so many positions."""
    row_bytes = len(data) // positions
    return [STATE.unpack_from(data, row * row_bytes)[0] for row in rows]
