"""The cache of a modelled engine knows of every layer and slot what a table with an entry for each would know."""

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from livescale.services.worker.engine.modelled_engine import export, take
from livescale.services.worker.engine.modelled_kv import ModelledKv
from livescale.services.worker.engine.modelled_steps import STATE_BYTES, first_state, follow, follows

LAYERS, BLOCKS, HOST_BLOCKS, BLOCK_TOKENS = 3, 5, 2, 4
SLOTS = (BLOCKS + HOST_BLOCKS) * BLOCK_TOKENS
ORIGIN = first_state("v1")
# What three requests have as states; the first two have the same tokens for a while.
CHAINS = [list(follow(ORIGIN, tokens)) for tokens in ([1] * SLOTS, [1] * 6 + [2] * SLOTS, [3] * SLOTS)]

STRETCHES = st.sampled_from([range(a, b) for a in range(LAYERS + 1) for b in range(a, LAYERS + 1)])
STARTS = st.sampled_from([0, 0, 0, 3 * BLOCK_TOKENS])  # where a request's slots begin
PARTS = st.tuples(st.integers(0, 9), st.integers(1, 9)).map(lambda part: range(part[0], sum(part)))
BLOCK_PARTS = st.sampled_from([range(0, 2), range(1, 3), range(3, 5), range(-2, 0)])
ACTS = st.one_of(
    st.tuples(st.just("write"), STARTS, PARTS, st.sampled_from(CHAINS), STRETCHES),
    st.tuples(st.just("write"), STARTS, PARTS, st.just(CHAINS[0]), STRETCHES),
    st.tuples(st.just("move"), STARTS, STARTS, PARTS, STRETCHES.filter(len), st.sampled_from(["", "", "drop", "flip"])),
    st.tuples(st.just("copy"), BLOCK_PARTS, BLOCK_PARTS),
)


class Table:
    """An entry for each layer and slot, and for the two stages that have no layer."""

    def __init__(self) -> None:
        self.states: dict[tuple[int, int], int] = {}

    def layers(self, layers: range) -> list[int]:
        if not layers:
            return [LAYERS + (layers.start > 0)]
        return list(range(LAYERS + 2)) if layers == range(LAYERS) else list(layers)

    def write(self, start: int, states: list[int], layers: range) -> None:
        for layer in self.layers(layers):
            for slot, state in enumerate(states, start):
                self.states[layer, slot] = state

    def last(self, slots: range, layers: range) -> int | None:
        before = ORIGIN
        for slot in slots:
            found = {self.states.get((layer, slot), 0) for layer in layers or self.layers(layers)}
            if len(found) > 1 or 0 in found or not follows(before, *found):
                return None
            [before] = found
        return before


def within(start: int, part: range) -> range:
    return range(min(start + part.start, SLOTS - 1), min(start + part.stop, SLOTS))


def move(kv: ModelledKv, table: Table, act: tuple[Any, ...]) -> None:
    """Export a part of a request, lose or damage some of it, and import it elsewhere."""
    source, target, part, layers, damage = act
    slots = within(source, part)
    to = range(target + part.start, target + part.start + len(slots))
    if to.stop > SLOTS:
        return
    each = len(slots) * STATE_BYTES + 3
    data = memoryview(bytearray(len(layers) * each))
    export(kv, slots, layers, data)
    came = {
        (layer, place): table.states.get((layer, slot), 0)
        for layer in layers
        for place, slot in zip(to, slots, strict=True)
    }
    lost = layers[-1], to[len(to) // 2]
    place = (len(layers) - 1) * each + len(to) // 2 * STATE_BYTES
    if damage == "drop":
        data[place : place + STATE_BYTES] = bytes(STATE_BYTES)
        came[lost] = 0
    elif damage == "flip" and came[lost]:
        data[place + 6] ^= 1
        came[lost] ^= 1 << 48
    take(kv, to, layers, data)
    table.states.update(came)
    if len(layers) == LAYERS:  # stages without a layer are there as well, or not
        for layer in (LAYERS, LAYERS + 1):
            for slot in to:
                table.states[layer, slot] = -1


@given(st.lists(ACTS, max_size=12))
def test_it_knows_what_a_table_of_all_layers_and_slots_knows(acts: list[tuple[Any, ...]]) -> None:
    kv, table = ModelledKv(LAYERS, BLOCKS, BLOCK_TOKENS, HOST_BLOCKS), Table()
    for name, *act in [("write", 0, range(9), CHAINS[0], range(LAYERS)), *acts]:
        if name == "write":
            start, part, chain, layers = act
            slots = within(start, part)
            states = chain[part.start : part.start + len(slots)]
            kv.write(slots.start, array("Q", states), kv.mask(layers))
            table.write(slots.start, states, layers)
        elif name == "move":
            move(kv, table, tuple(act))
        elif act[0] != act[1] and set(act[0]).isdisjoint(act[1]):
            source, target = kv.slots(act[0]), kv.slots(act[1])
            kv.copy(source, target)
            for layer in range(LAYERS + 2):
                for old, new in zip(source, target, strict=True):
                    table.states[layer, new] = table.states.get((layer, old), 0)
        for start in (0, BLOCK_TOKENS, 3 * BLOCK_TOKENS):
            for stop in range(start + 1, SLOTS):
                slots = range(start, stop)
                for layers in (range(1), range(1, 3), range(LAYERS)):
                    assert kv.last(slots, kv.mask(layers), ORIGIN) == table.last(slots, layers)


@pytest.mark.parametrize("layers", [range(0, 0), range(LAYERS, LAYERS), range(1, 2), range(LAYERS)])
def test_rows_are_known_to_the_stages_that_ran_them_and_to_no_others(layers: range) -> None:
    kv, slots = ModelledKv(LAYERS, BLOCKS, BLOCK_TOKENS), range(4, 9)
    kv.write(slots.start, array("Q", CHAINS[0][:5]), kv.mask(layers))
    stages = [range(0, 0), range(LAYERS, LAYERS), *(range(layer, layer + 1) for layer in range(LAYERS))]
    known = [kv.last(slots, kv.mask(stage), ORIGIN) for stage in stages]
    same = [layers == range(LAYERS) or (stage.start, stage.stop) == (layers.start, layers.stop) for stage in stages]
    assert known == [CHAINS[0][4] if one else None for one in same]


def test_a_request_is_one_extent_however_it_was_computed() -> None:
    kv = ModelledKv(LAYERS, 64, BLOCK_TOKENS)
    for layer in range(LAYERS):  # as a target that loads does
        for start in (0, 8):
            kv.write(start, array("Q", CHAINS[0][start : start + 8]), kv.mask(range(layer, layer + 1)))
    for position in range(16, SLOTS):
        kv.write(position, array("Q", CHAINS[0][position : position + 1]), kv.mask(range(LAYERS)))
    [extent] = kv._touching(range(SLOTS))
    assert (extent.start, extent.stop, list(extent.states)) == (0, SLOTS, CHAINS[0])


def test_a_request_goes_on_from_a_prefix_that_another_went_on_from_otherwise() -> None:
    kv, every = ModelledKv(LAYERS, BLOCKS, BLOCK_TOKENS), range(LAYERS)
    kv.write(0, array("Q", CHAINS[0][:12]), kv.mask(every))
    kv.write(6, array("Q", CHAINS[1][6:8]), kv.mask(every))
    assert kv.last(range(8), kv.mask(every), ORIGIN) == CHAINS[1][7]
    assert kv.last(range(9), kv.mask(every), ORIGIN) is None
