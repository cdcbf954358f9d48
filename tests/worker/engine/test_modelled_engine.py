"""What a hand-off may lose: wherever a layer lacks the KV of a position, or has another's, tokens are others. KV is the
same in memory of the host and in that of a simulation."""

from array import array
from collections.abc import Callable

import pytest

from livescale.services.worker.engine.contract import LayerwiseRun, zeros
from livescale.services.worker.engine.modelled_engine import ModelledEngine, export, take
from livescale.services.worker.engine.modelled_kv import ModelledKv
from livescale.services.worker.engine.modelled_steps import STATE_BYTES, first_state, follow
from livescale.services.worker.scheduling.batch import (
    NO_BYTES,
    Batch,
    KvImport,
    KvSlice,
    LayerEntry,
    ScheduledChunk,
    TokenSampling,
    slice_bytes,
)
from livescale.shared.messages.requests import Sampling
from livescale.shared.simulation.sparse_memory import SparseKv
from tests.worker.engine.made_up import BLOCK_TOKENS, LAYERS, VOCABULARY, made_up_tokens, manifest
from tests.worker.requests import random_prompt, submit

PROMPT, OTHER = random_prompt(3, 100, VOCABULARY), random_prompt(4, 100, VOCABULARY)
THERE = range(40, 60)
Damage = Callable[[memoryview], None]


def expected(count: int = 4) -> list[int]:
    return made_up_tokens("v1", VOCABULARY, submit("a", PROMPT, max_tokens=count))


def engine(missing: list[tuple[int, range]] | None = None) -> ModelledEngine:
    seen = [] if missing is None else missing
    made = ModelledEngine(manifest(), 64, BLOCK_TOKENS, 0, lambda chunk, layers: seen.append((chunk.start, layers)))
    for block in manifest().blocks:
        made.add_block(block.index)
    return made


def prompt(tokens: list[int] = PROMPT, blocks: range = THERE, entry: LayerEntry | None = None) -> ScheduledChunk:
    return ScheduledChunk("a", tuple(tokens), 0, blocks, False, TokenSampling(Sampling(), 0), entry)


def decode(made: ModelledEngine, tokens: list[int], count: int, step: int = 2) -> list[int]:
    """Generate so many tokens, one by one."""
    for number in range(count):
        sampling = TokenSampling(Sampling(), len(tokens))
        start = len(PROMPT) + len(tokens) - 1
        row = ScheduledChunk("a", (tokens[-1],), start, THERE, True, sampling)
        tokens = tokens + made.step(Batch(step + number, (row,))).tokens
    return tokens


def layers_done(made: ModelledEngine, tokens: list[int], layers: int) -> tuple[LayerEntry, memoryview]:
    """Run some layers of a prompt. Returns the activation and the KV."""
    run, blocks = LayerwiseRun([prompt(tokens, range(2, 22))]), range(2, 2 + -(-len(tokens) // BLOCK_TOKENS))
    for _ in range(layers):
        made.run_layer([run])
    kv = made.export_kv(blocks, layers)
    assert isinstance(kv, memoryview)
    return LayerEntry(layers, len(tokens), memoryview(bytearray(run.activation))), kv


def handed_off(layers: int, damage: Damage, activation: Damage, missing: list[tuple[int, range]]) -> list[int]:
    """The tokens of a request whose first layers ran elsewhere, and whose KV and activation came damaged."""
    source = engine(missing)
    source.step(Batch(1, (prompt(OTHER),)))  # another's KV is where this request's will be
    entry, kv = layers_done(engine(missing), PROMPT, layers)
    damage(kv)
    activation(entry.activation)
    tokens = source.step(Batch(2, (prompt(entry=entry),))).tokens
    blocks = THERE[: -(-len(PROMPT) // BLOCK_TOKENS)]
    row = ScheduledChunk("a", (tokens[0],), len(PROMPT), THERE, True, TokenSampling(Sampling(), 1))
    tokens += source.step(Batch(3, (row,), imports=(KvImport("a", blocks, layers, kv),))).tokens
    return decode(source, tokens, 2, step=4)


def nothing(data: memoryview) -> None:
    """Leave it as it is."""


def drop(layer: int, layers: int, start: int = 0, stop: int = len(PROMPT)) -> Damage:
    """Lose some positions of one layer of a hand-off's KV."""

    def damage(kv: memoryview) -> None:
        part = kv.nbytes // layers * layer
        kv[part + 8 * start : part + 8 * stop] = bytes(8 * (stop - start))

    return damage


@pytest.mark.parametrize("layers", range(1, LAYERS + 1))
def test_a_hand_off_that_loses_nothing_leaves_the_tokens_as_they_are(layers: int) -> None:
    missing = list[tuple[int, range]]()
    assert handed_off(layers, nothing, nothing, missing) == expected()
    assert missing == []


@pytest.mark.parametrize("layer", range(3))
def test_one_layer_that_is_lost_is_missed(layer: int) -> None:
    missing = list[tuple[int, range]]()
    tokens = handed_off(3, drop(layer, 3), nothing, missing)
    assert tokens[0] == expected()[0]  # it came of the activation
    assert all(one != right for one, right in zip(tokens[1:], expected()[1:], strict=True))
    assert missing[0] == (len(PROMPT), range(LAYERS))


@pytest.mark.parametrize("position", [0, 1, 50, len(PROMPT) - 1])
def test_one_position_of_one_layer_that_is_lost_is_missed(position: int) -> None:
    tokens = handed_off(3, drop(1, 3, position, position + 1), nothing, [])
    assert tokens[:1] == expected()[:1]
    assert tokens[1:] != expected()[1:]


@pytest.mark.parametrize("position", [0, 50, len(PROMPT) - 1])
def test_one_bit_that_is_another_is_missed(position: int) -> None:
    def flip(kv: memoryview) -> None:
        kv[kv.nbytes // 3 + 8 * position] ^= 4

    assert handed_off(3, flip, nothing, [])[1:] != expected()[1:]


@pytest.mark.parametrize("row", [0, 50, len(PROMPT) - 1])
def test_an_activation_that_is_another_is_missed_in_whichever_row(row: int) -> None:
    def flip(activation: memoryview) -> None:
        activation[activation.nbytes // len(PROMPT) * row] ^= 1

    missing = list[tuple[int, range]]()
    assert handed_off(2, nothing, flip, missing) != expected()
    assert missing[0] == (0, range(2, LAYERS))


def test_the_kv_of_another_request_is_not_taken_for_its_own() -> None:
    def other(kv: memoryview) -> None:
        kv[:] = layers_done(engine(), OTHER, 2)[1]

    assert handed_off(2, other, nothing, [])[1:] != expected()[1:]


def test_what_an_earlier_request_left_in_the_blocks_is_not_taken_for_its_own() -> None:
    """The request has the first half; the second is that of a request that had these blocks before."""
    made = engine()
    made.step(Batch(1, (prompt(OTHER),)))
    half = ScheduledChunk("a", tuple(PROMPT[:48]), 0, THERE, False)
    made.step(Batch(2, (half,)))
    row = ScheduledChunk("a", (expected()[0],), len(PROMPT), THERE, True, TokenSampling(Sampling(), 1))
    assert made.step(Batch(3, (row,))).tokens != expected()[1:2]


def test_slices_carry_their_layers_and_positions() -> None:
    """Two stages each have half of the layers; the second's go to the first in two parts."""
    first, second = engine(), engine()
    slices = [KvSlice(THERE, start, stop, range(2, LAYERS)) for start, stop in ((0, 30), (30, len(PROMPT)))]

    def gone_on(damage: Damage) -> list[int]:
        passed = first.run_blocks(range(0, 3), [prompt()], NO_BYTES)
        tokens = second.run_blocks(range(3, LAYERS + 2), [prompt()], passed.activation).chosen.tokens
        data = second.export_slices(slices)
        damage(data)
        first.import_slices(slices, data)
        return decode(first, tokens, 3)

    assert gone_on(nothing) == expected()

    def drop_of_second(data: memoryview) -> None:
        begin = slice_bytes(manifest(), slices[0])
        data[begin : begin + 8] = bytes(8)

    assert gone_on(drop_of_second)[1:] != expected()[1:]
    assert gone_on(nothing) == expected()


def test_a_stage_whose_activation_is_damaged_says_so_in_what_it_passes_on_and_keeps() -> None:
    first, second = engine(), engine()
    passed = first.run_blocks(range(0, 3), [prompt()], NO_BYTES)
    passed.activation[passed.activation.nbytes // 2] ^= 1
    assert second.run_blocks(range(3, LAYERS + 2), [prompt()], passed.activation).chosen.tokens != expected(1)
    right = first.run_blocks(range(0, 3), [decode_row()], NO_BYTES)
    assert second.run_blocks(range(3, LAYERS + 2), [decode_row()], right.activation).chosen.tokens != expected(2)[1:]


def decode_row() -> ScheduledChunk:
    return ScheduledChunk("a", (expected(1)[0],), len(PROMPT), THERE, True, TokenSampling(Sampling(), 1))


def test_stages_of_one_worker_may_hold_two_requests_in_the_same_slots() -> None:
    """A later batch has run the first layers of a request whose blocks another one had; that one's batch comes to the
    last layers only now, and leaves the first alone."""
    made = engine()
    made.run_blocks(range(0, 3), [prompt()], NO_BYTES)
    activation = engine().run_blocks(range(0, 3), [prompt(OTHER)], NO_BYTES).activation
    made.run_blocks(range(3, LAYERS + 2), [prompt(OTHER)], activation)
    activation = engine().run_blocks(range(0, 3), [prompt()], NO_BYTES).activation
    tokens = made.run_blocks(range(3, LAYERS + 2), [prompt()], activation).chosen.tokens
    assert decode(made, tokens, 3) == expected()


KV_LAYERS, KV_BLOCKS, KV_BLOCK_TOKENS = 3, 5, 4
ORIGIN = first_state("v1")
STATES = list(follow(ORIGIN, range(1, 9)))


def test_sparse_memory_has_what_real_memory_would_have() -> None:
    kv, each = ModelledKv(KV_LAYERS, KV_BLOCKS, KV_BLOCK_TOKENS), 8 * STATE_BYTES + 5
    kv.write(0, array("Q", STATES[:6]), kv.mask(range(KV_LAYERS)))
    kv.write(6, array("Q", STATES[6:8]), kv.mask(range(1, 3)))
    real, sparse, came = zeros(KV_LAYERS * each), SparseKv.of(KV_LAYERS * each), SparseKv.of(KV_LAYERS * each)
    export(kv, range(8), range(KV_LAYERS), real)
    export(kv, range(8), range(KV_LAYERS), sparse)
    assert bytes(sparse) == real
    for start in range(0, came.nbytes, 11):  # as pieces do, which begin and end anywhere
        came[start : start + 11].put(sparse[start : start + 11].copy())
    there = ModelledKv(KV_LAYERS, KV_BLOCKS, KV_BLOCK_TOKENS)
    take(there, range(12, 20), range(KV_LAYERS), came)
    assert there.last(range(12, 18), there.mask(range(KV_LAYERS)), ORIGIN) == STATES[5]
    assert there.last(range(12, 20), there.mask(range(1, 3)), ORIGIN) == STATES[7]
    assert there.last(range(12, 20), there.mask(range(1)), ORIGIN) is None
